"""Yardsticks for our samplers: the body alone, and samplers as they are usually written.

The textbook samplers compute the head at every position and draw in 32 bits, as the published code does. They have
their own naive reverse steps, because a yardstick must not share the code that it measures.
"""

from __future__ import annotations

from collections.abc import Callable

import torch
from torch import Tensor

from di4c_cli.denoiser import Denoiser
from di4c_cli.process import Markov, Masked
from di4c_cli.sampler.confidence import gumbel_scale, reveal_counts
from di4c_cli.sampler.plan import SamplingPlan
from di4c_cli.sampler.predictor import guidance_weight


def _label(model: Denoiser, settings: SamplingPlan, batch: int) -> Tensor | None:
    if not settings.guidance:
        return None
    return torch.arange(batch, device=model.device) % (model.labels or 1)


def _latent(model: Denoiser, batch: int) -> Tensor | None:
    """One λ per sample from torch's own generator, as a plain sampler would draw it."""
    if model.latent is None:
        return None
    shape = (batch,) if model.latent.size == 1 else (batch, model.latent.size)
    draw = torch.rand if model.latent.distribution == "uniform" else torch.randn
    return draw(shape, device=model.device, dtype=model.time_dtype)


@torch.no_grad()
def body_only(model: Denoiser, settings: SamplingPlan, batch: int) -> None:
    """As many calls of the body on the whole batch as a sampler makes, and nothing else."""
    model.network.eval()
    x = torch.full((batch, model.length), model.process.states - 1, device=model.device)
    label = _label(model, settings, batch)
    for t in settings.times()[:0:-1]:
        time = torch.full((batch,), t, dtype=torch.float64, device=model.device)
        lam = _latent(model, batch)
        model(x, time, label, lam)
        if label is not None and float(guidance_weight(settings.guidance, time, settings.steps)[0]):
            model(x, time, torch.full_like(label, -1), lam)


@torch.no_grad()
def sample(model: Denoiser, settings: SamplingPlan, batch: int, seed: int = 0) -> Tensor:
    """x_0 `(B, D)` by full heads and 32-bit draws."""
    model.network.eval()
    generator = torch.Generator(model.device).manual_seed(seed)
    points = settings.times()
    x = model.process.prior(torch.rand(batch, model.length, device=model.device, generator=generator))
    label = _label(model, settings, batch)
    for i in range(settings.steps, 0, -1):
        t, s = (torch.full((batch,), v, device=model.device) for v in (points[i], points[i - 1]))
        p0 = _full_head(model, settings, x, t, label)
        if i == 1 and settings.last == "argmax":
            x = p0.argmax(-1)
        elif isinstance(model.process, Masked) and settings.sampler == "confidence":
            x = _confidence(model.process, settings, p0, x, t, i, generator)
        elif isinstance(model.process, Masked):
            x = _ancestral(model.process, p0, x, t, s, generator)
        elif isinstance(model.process, Markov):
            posterior = model.process.posterior(p0, x, t, s).float()
            x = torch.multinomial(posterior.flatten(0, 1), 1, generator=generator).view_as(x)
    return x


def _full_head(model: Denoiser, settings: SamplingPlan, x: Tensor, t: Tensor, label: Tensor | None) -> Tensor:
    """p(x0|xt) `(B, D, S)` at every position, known or not; guided if there is a label."""
    batch, length = x.shape
    lam = _latent(model, batch)
    if lam is not None and model.learned_prior is not None:
        lam = model.learned_prior.transport(lam.view(batch, -1), x, t, label).view(lam.shape)
    d = torch.arange(length, device=x.device).repeat(batch)

    def logits(own: Tensor | None) -> Tensor:
        head: Callable[[Tensor, Tensor], Tensor] = model.network.head  # type: ignore[assignment]
        return head(model(x, t, own, lam).flatten(0, 1), d).view(batch, length, -1)

    rows = logits(label)
    if label is not None:
        w = guidance_weight(settings.guidance, t, settings.steps)[:, None, None]
        rows = (1 + w) * rows - w * logits(torch.full_like(label, -1))
    return rows.softmax(-1)


def _gumbel_max(probs: Tensor, generator: torch.Generator) -> Tensor:
    """The published draw: p divided by exponential noise from 32-bit uniforms."""
    noise = torch.rand(probs.shape, device=probs.device, generator=generator)
    return (probs / (1e-10 - (noise + 1e-10).log())).argmax(-1)


def _ancestral(process: Masked, p0: Tensor, x: Tensor, t: Tensor, s: Tensor, generator: torch.Generator) -> Tensor:
    """One step of MDLM's sampler, which draws the mask as one more symbol."""
    m_t, m_s = (process.mask_share(a).float()[:, None, None] for a in (t, s))
    probs = torch.cat((p0 * (m_t - m_s), m_s.expand(*x.shape, 1)), -1)
    return torch.where(x == process.mask, _gumbel_max(probs, generator), x)


def _confidence(
    process: Masked, settings: SamplingPlan, p0: Tensor, x: Tensor, t: Tensor, i: int, generator: torch.Generator
) -> Tensor:
    """One step of MaskGIT's sampler on all positions."""
    drawn = _gumbel_max(p0, generator)
    noise = -torch.log(-torch.log(torch.rand(x.shape, device=x.device, generator=generator) + 1e-10) + 1e-10)
    sure = p0.gather(2, drawn[..., None]).squeeze(-1).log()
    sure = sure + gumbel_scale(t, settings.steps)[:, None] * noise
    sure = sure.masked_fill(x != process.mask, -torch.inf)
    free = torch.full((len(x),), x.shape[1], device=x.device)
    count = int(reveal_counts(process, settings.steps, free)[settings.steps - i, 0])
    best = sure.topk(count, dim=1).indices
    return x.scatter(1, best, drawn.gather(1, best))
