"""One step of the teacher from x_t to x_u, drawn once per latent."""

from __future__ import annotations

import torch
from torch import Tensor

from di4c_cli.denoiser import Denoiser, Prediction
from di4c_cli.errors import UserError
from di4c_cli.methods.base import repeat, repeat_label
from di4c_cli.methods.di4c_times import SampledTimes
from di4c_cli.methods.loss_domain import with_mask_symbol
from di4c_cli.noise import Noise
from di4c_cli.process import Masked
from di4c_cli.sampler.confidence import GUMBEL_SCALE_AT_START, confidence_step, counts_between, gumbel_scale

AUTHORS_STEPS = 8
"""Sampling steps to which the Gumbel scale of the authors' teacher step belongs."""


def teacher_predictions(
    teacher: Denoiser, x_t: Tensor, t: Tensor, label: Tensor | None, count: int, noise: Noise
) -> tuple[Prediction, int]:
    """The teacher at x_t and the number of its predictions per sample.

    One for a product teacher. A mixture (rounds ≥ 2) makes `count` with a fresh λ each: they are the Monte
    Carlo marginals, and each of the steps to x_u takes its own (section iterative-di4c).
    """
    lam = teacher.draw_latent(noise, "lam/teacher", x_t, t, label, count)
    if lam is None:
        return teacher.predict(x_t, t, label), 1
    many = teacher.predict(repeat(x_t, count), repeat(t, count), repeat_label(label, count), lam.flatten(0, 1))
    return many, count


def analytical_teacher_step(
    prediction: Prediction, teacher_latents: int, x_t: Tensor, times: SampledTimes, uniform: Tensor, budget: int
) -> Tensor:
    """x_u `(B, L, D)` by the analytical step (eq. dimiwise-analytical) from uniforms `(B, L, D, 2)`.

    `prediction` holds `teacher_latents` = 1 or L predictions per sample. Positions are worked in slices, so that the
    `(B, L, D, S)` probabilities of a process without a mask never exist at once; `budget` is the size of a
    slice in bytes.
    """
    shape = uniform.shape[:3]
    t, u = times.t, times.u
    if teacher_latents > 1:
        uniform = uniform.flatten(0, 1)
        x_t, t, u = (repeat(x, teacher_latents) for x in (x_t, t, u))
    process, draws = prediction.process, float(shape[1])
    if isinstance(process, Masked):  # draws only where a position is revealed, from probabilities that all draws share
        draws = 1 + draws * float(process.reveal_share(t, u).max())
    width = max(1, int(budget / (8 * shape[0] * draws * process.symbols)))
    parts = []
    for start in range(0, shape[2], width):

        def rows(b: Tensor, d: Tensor, start: int = start) -> Tensor:
            return prediction.log_probs(b, d + start)

        part = slice(start, start + width)
        parts.append(process.step(rows, x_t[:, part], t, u, uniform[..., part, :]))
    return torch.cat(parts, -1).view(shape)


def confidence_teacher_step(
    prediction: Prediction,
    teacher_latents: int,
    x_t: Tensor,
    times: SampledTimes,
    noise: Noise,
    count: int,
    authors: bool = False,
) -> Tensor:
    """x_u `(B, L, D)` by one confidence step (section F.2.2).

    n(t, u) positions are revealed, at least one; the Gumbel scale is that of a sampler with 1/Δt steps. With `authors`
    the step is that of the authors' code: positions are revealed until D m_u are masked, maybe none; the Gumbel scale
    is that of a sampler with 8 steps, negative below t = 1/8; and the mask symbol may be drawn.
    """
    process, length = prediction.process, x_t.shape[1]
    if not isinstance(process, Masked):
        raise UserError("method.teacher_step: confidence needs a masked process.", "Use analytical.")
    value, gumbel = noise.uniform("step/u", count, length), noise.gumbel("step/gumbel", count, length)
    if authors:
        number = (process.unknown(x_t).sum(1) - length * process.mask_share(times.u)).long().clamp_min(0)
        scale = GUMBEL_SCALE_AT_START * (times.t - 1 / AUTHORS_STEPS) / (1 - 1 / AUTHORS_STEPS)
        prediction = with_mask_symbol(prediction)
    else:
        number = counts_between(process, torch.full_like(times.t, length), times.t, times.u).clamp_min(1)
        scale = gumbel_scale(times.t, (1 / times.step).round().clamp_min(1))
    shape = value.shape
    if teacher_latents > 1:
        value, gumbel, x_t = value.flatten(0, 1), gumbel.flatten(0, 1), repeat(x_t, teacher_latents)
        number, scale = repeat(number, teacher_latents), repeat(scale, teacher_latents)
    return confidence_step(prediction, x_t, number, scale, value, gumbel).view(shape)
