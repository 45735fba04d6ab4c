"""Analytical steps p_{s|t} (eq. dimiwise-analytical, deduce-analytical) for every process."""

from __future__ import annotations

import torch
from torch import Tensor

from di4c_cli.denoiser import Prediction
from di4c_cli.noise import Noise
from di4c_cli.process import Masked, all_rows
from di4c_cli.sampler.predictor import Predictor
from di4c_cli.sampler.rows import RowNoise, draw_rows, most_likely
from di4c_cli.sampler.tiles import padded


def analytical_step(ask: Predictor, x_t: Tensor, t: Tensor, s: Tensor, noise: Noise) -> Tensor:
    """x_t `(B, D)` -> x_s ~ p_{s|t}(·|x_t; λ) with a fresh λ, for times t > s `(B,)`; draws from `noise`."""
    if isinstance(ask.process, Masked):
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
    prediction = ask(x_t, t, noise, None if len(active) == len(x_t) else active)
    b, d = reveal[active].nonzero(as_tuple=True)
    uniform = noise.uniform("value", length)[active[b], d]
    x_s = x_t.clone()
    x_s[active[b], d] = draw_rows(
        prediction, b, d, uniform, row_noise(ask, noise, length, active), ask.head_rows
    )
    return x_s


def row_noise(ask: Predictor, noise: Noise, length: int, active: Tensor | None = None) -> RowNoise | None:
    """The 32-bit draw's uniforms for the samples `active`, or None for exact draws."""
    if ask.settings.dtype == "float64":
        return None
    picked = range(len(noise)) if active is None else active.tolist()
    return RowNoise(Noise(noise.seed, [noise.index[i] for i in picked], noise.stream, noise.device), length)


def _markov_step(ask: Predictor, x_t: Tensor, t: Tensor, s: Tensor, noise: Noise) -> Tensor:
    """Bayes' rule over the whole symbol set, in tiles of samples: `(B, D, S)` need not exist."""
    prediction = ask(x_t, t, noise)
    uniform = noise.uniform("value", x_t.shape[1], 2)
    size = ask.tile or len(x_t)
    parts = []
    for start in range(0, len(x_t), size):
        part = [padded(a[start : start + size], size) for a in (x_t, t, s, uniform)]
        stop = min(start + size, len(x_t)) - 1
        parts.append(_markov_tile(ask, prediction, start, stop, part)[: stop + 1 - start])
    return torch.cat(parts)


def _markov_tile(ask: Predictor, prediction: Prediction, start: int, stop: int, part: list[Tensor]) -> Tensor:
    """One tile of `_markov_step`; padding repeats sample `stop`."""

    def log_probs(b: Tensor, d: Tensor) -> Tensor:
        return prediction.log_probs((b + start).clamp_max(stop), d)

    x_t, t, s, uniform = part
    return ask.process.step(log_probs, x_t, t, s, uniform)


def last_argmax(ask: Predictor, x_t: Tensor, t: Tensor, noise: Noise) -> Tensor:
    """x_0 = arg max p(·|x_t; λ) at every unknown position: the published last step for pixels."""
    unknown = ask.process.unknown(x_t)
    b, d = all_rows(x_t) if bool(unknown.all()) else unknown.nonzero(as_tuple=True)
    if len(b) == 0:
        return x_t
    x_0 = x_t.clone()
    x_0[b, d] = most_likely(ask(x_t, t, noise), b, d, ask.head_rows)
    return x_0
