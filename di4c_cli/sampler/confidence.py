"""Confidence-based steps of MaskGIT (section mg-sampling): draw every position, keep the most confident."""

from __future__ import annotations

import torch
from torch import Tensor

from di4c_cli.denoiser import Prediction
from di4c_cli.draw import finest
from di4c_cli.noise import Noise
from di4c_cli.process import Masked
from di4c_cli.sampler.draws import HeadChunks, RowNoise
from di4c_cli.sampler.predictor import Predictor

GUMBEL_SCALE_AT_START = 4.5
"""Gumbel scale of the confidence sampler at t = 1 (section mg-sampling)."""


def maskgit_step(
    predictor: Predictor, x_t: Tensor, t: Tensor, count: Tensor, noise: Noise, block: Tensor | None = None
) -> Tensor:
    """x_t `(B, D)` -> x_s at times t `(B,)`; sample i reveals `count[i]` positions (of `block`) with a fresh λ."""
    active = (count > 0).nonzero().squeeze(1)
    if len(active) == 0:
        return x_t
    length = x_t.shape[1]
    unknown = predictor.process.unknown(x_t)
    unknown = (unknown if block is None else unknown & block)[active]
    prediction = predictor(x_t, t, noise, active, unknown)
    value = noise.uniform("value", length)[active]
    gumbel = noise.gumbel("order", length)[active]
    scale = gumbel_scale(t, predictor.plan.steps)[active]
    published = RowNoise(noise.of(active), length)
    chunks = HeadChunks.of(predictor, published if predictor.plan.dtype == "float32" else None)
    x_s = x_t.clone()
    x_s[active] = confidence_step(prediction, x_t[active], count[active], scale, value, gumbel, chunks, unknown)
    return x_s


def confidence_step(
    prediction: Prediction,
    x_t: Tensor,
    count: Tensor,
    scale: Tensor,
    value: Tensor,
    gumbel: Tensor,
    chunks: HeadChunks | None = None,
    unknown: Tensor | None = None,
) -> Tensor:
    """x_t `(B, D)` -> x_s `(B, *many, D)`: each sample reveals its `count` (B,) most confident masked positions.

    conf(d) = log p(x̃0^d | xt) + c_gb ε^d with c_gb = `scale` (B,), ε = `gumbel` (B, *many, D) standard Gumbel
    numbers, x̃0 drawn from `value` (B, *many, D) uniforms. `many` draws share one prediction. A count above the
    number of masked positions reveals them all; `unknown` (B, D) may be a part of them. `gumbel_scale` and
    `counts_between` give the paper's scale and count.
    """
    batch, length = x_t.shape
    unknown = prediction.process.unknown(x_t) if unknown is None else unknown
    b, d = unknown.nonzero(as_tuple=True)
    uniform, noise = (a.reshape(batch, -1, length).transpose(1, 2) for a in (value, gumbel))  # (B, D, many)
    drawn, log_p = (chunks or HeadChunks()).confident(prediction, b, d, uniform[b, d])
    many = uniform.shape[2]
    confidence = torch.full((batch, many, length), -torch.inf, dtype=log_p.dtype, device=x_t.device)
    confidence[b, :, d] = log_p + scale.to(log_p)[b, None] * noise[b, d]
    proposal = x_t[:, None].expand(batch, many, length).clone()
    proposal[b, :, d] = drawn
    # stable, so that equal confidences (scale 0) still reveal exactly `count`, the first positions first
    order = confidence.argsort(dim=-1, descending=True, stable=True)
    wanted = torch.arange(length, device=x_t.device) < torch.minimum(count, unknown.sum(1))[:, None, None]
    reveal = torch.zeros_like(confidence, dtype=torch.bool).scatter_(2, order, wanted.expand_as(order))
    x_s = torch.where(reveal, proposal, x_t[:, None])
    return x_s.view(value.shape)


def counts_between(process: Masked, free: Tensor, t: Tensor, s: Tensor) -> Tensor:
    """n(t, s) = round(D m_t) - round(D m_s) for `free` maskable positions (B,), times (B,) -> (B,) long."""
    high = (free * process.mask_share(t)).round()
    return (high - (free * process.mask_share(s)).round()).long()


def reveal_counts(process: Masked, steps: int, free: Tensor) -> Tensor:
    """Tokens to reveal at each step, `(N, B)` in the order of sampling, for `free` (B,) masked positions.

    n(t_i, t_{i-1}) of section mg-sampling with the at-least-one rule: a zero becomes a one, and
    the last step reveals fewer. When no masked position is left, the remaining counts are zeros.
    """
    t = torch.arange(steps, -1, -1, dtype=finest(free.device), device=free.device) / steps
    masked = (free[None].to(t) * process.mask_share(t)[:, None]).round().long()  # (N + 1, B)
    wanted = (masked[:-1] - masked[1:]).clamp_min(1)
    done = torch.minimum(wanted.cumsum(0), free[None])
    done[-1] = free
    return torch.diff(done, dim=0, prepend=torch.zeros_like(done[:1]))


def gumbel_scale(t: Tensor, steps: int | Tensor) -> Tensor:
    """c_gb(t) = 4.5 (t - 1/N) / (1 - 1/N), `(B,)`; 0 at N = 1 and for times below the last step's."""
    last = torch.as_tensor(1 / steps, dtype=t.dtype)
    span = (1 - last).clamp_min(torch.finfo(t.dtype).tiny)  # 0 at N = 1, where t - 1/N is not above 0
    return (GUMBEL_SCALE_AT_START * (t - last) / span).clamp_min(0)
