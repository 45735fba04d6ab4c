"""Analytical steps p_{s|t} (eq. dimiwise-analytical, deduce-analytical) for every process."""

from __future__ import annotations

from collections.abc import Callable, Sequence

import torch
from torch import Tensor

from di4c_cli.noise import Noise
from di4c_cli.process import Masked, RowLogProbs, all_rows
from di4c_cli.sampler.predictor import Predictor
from di4c_cli.sampler.published import published_step
from di4c_cli.sampler.rows import Draws


def analytical_step(ask: Predictor, x_t: Tensor, t: Tensor, s: Tensor, noise: Noise) -> Tensor:
    """x_t `(B, D)` -> x_s ~ p_{s|t}(·|x_t; λ) with a fresh λ, for times t > s `(B,)`; draws from `noise`."""
    if isinstance(ask.process, Masked):
        if ask.settings.dtype == "float32":
            return published_step(ask, ask.process, x_t, t, s, noise)
        return _masked_step(ask, ask.process, x_t, t, s, noise)
    return _markov_step(ask, x_t, t, s, noise)


def _masked_step(ask: Predictor, process: Masked, x_t: Tensor, t: Tensor, s: Tensor, noise: Noise) -> Tensor:
    """Decide first which positions are revealed: the probability (m_t - m_s)/m_t knows nothing of the value.

    The head then runs at those positions only, the body only for samples that reveal something.
    """
    length = x_t.shape[1]
    chance = process.reveal_share(t, s)[:, None]
    reveal = process.unknown(x_t) & (noise.uniform("reveal", length) < chance)
    return fill(ask, x_t, t, reveal, noise)


def fill(ask: Predictor, x_t: Tensor, t: Tensor, reveal: Tensor, noise: Noise) -> Tensor:
    """x_t with the masked positions `reveal` (B, D) filled from p(x0|xt; λ)."""
    active = reveal.any(1).nonzero().squeeze(1)
    if len(active) == 0:
        return x_t
    length = x_t.shape[1]
    wanted = reveal[active]
    prediction = ask(x_t, t, noise, active, wanted)
    b, d = wanted.nonzero(as_tuple=True)
    uniform = noise.uniform("value", length)[active[b], d]
    x_s = x_t.clone()
    x_s[active[b], d] = Draws(ask.head_rows, ask.tile == 1).values(prediction, b, d, uniform)
    return x_s


def noise_of(noise: Noise, picked: Sequence[int]) -> Noise:
    """The noise of some samples of the batch, by their place in it."""
    return Noise(noise.seed, [noise.index[i] for i in picked], noise.stream, noise.device)


def _markov_step(ask: Predictor, x_t: Tensor, t: Tensor, s: Tensor, noise: Noise) -> Tensor:
    """Bayes' rule over the whole symbol set, in tiles of samples."""

    dtype = torch.float32 if ask.settings.dtype == "float32" else torch.float64

    def step(log_probs: RowLogProbs, own: Noise, x_t: Tensor, t: Tensor, s: Tensor) -> Tensor:
        return ask.process.step(log_probs, x_t, t, s, own.uniform("value", x_t.shape[1], 2), dtype)

    return in_tiles(ask, step, noise, x_t, t, s)


def in_tiles(
    ask: Predictor, step: Callable[..., Tensor], noise: Noise, x_t: Tensor, t: Tensor, *times: Tensor
) -> Tensor:
    """One prediction of x_t `(B, D)`, then `step(log_probs, noise, x_t, t, *times)` tile by tile.

    A step that needs `(B, D, S)` laws has them for a tile only, and always for a full one.
    """
    prediction = ask(x_t, t, noise)
    batch, size = len(x_t), ask.tile or len(x_t)
    parts = []
    for start in range(0, batch, size):
        picked = [min(i, batch - 1) for i in range(start, start + size)]
        rows = torch.tensor(picked, device=x_t.device)

        def log_probs(b: Tensor, d: Tensor, rows: Tensor = rows) -> Tensor:
            return prediction.log_probs(rows[b], d)

        own = noise_of(noise, picked)
        parts.append(step(log_probs, own, *(a[rows] for a in (x_t, t, *times)))[: batch - start])
    return torch.cat(parts)


def last_argmax(ask: Predictor, x_t: Tensor, t: Tensor, noise: Noise) -> Tensor:
    """x_0 = arg max p(·|x_t; λ) at every unknown position: the published last step for pixels."""
    unknown = ask.process.unknown(x_t)
    b, d = all_rows(x_t) if bool(unknown.all()) else unknown.nonzero(as_tuple=True)
    if len(b) == 0:
        return x_t
    x_0 = x_t.clone()
    prediction = ask(x_t, t, noise, wanted=unknown)
    x_0[b, d] = Draws(ask.head_rows, ask.tile == 1).likeliest(prediction, b, d)
    return x_0
