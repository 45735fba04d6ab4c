"""Where x_t comes from: corrupted data, or the teacher's own trajectory when there is no data."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Protocol

import torch
from torch import Tensor

from di4c_cli.denoiser import Denoiser
from di4c_cli.errors import UserError
from di4c_cli.noise import Noise
from di4c_cli.objective.settings import Settings
from di4c_cli.objective.times import Moments


class Samples(Protocol):
    """What the objective needs of a batch: numbered samples, x0 `(B, D)` and label `(B,)` if any."""

    @property
    def index(self) -> list[int]: ...

    @property
    def x0(self) -> Tensor | None: ...

    @property
    def label(self) -> Tensor | None: ...


@dataclass(frozen=True)
class Reference:
    """x_t ~ r_t `(B, D)`, and the x0 it belongs to when that is known."""

    x_t: Tensor
    x0: Tensor | None


def draw_reference(
    settings: Settings, teacher: Denoiser, batch: Samples, moments: Moments, noise: Noise
) -> Reference:
    """r_t by `settings.reference`: `data` corrupts x0, `teacher` runs the teacher down to t, or on to 0.

    A posterior needs pairs (x0, x_t) and nothing in between: x0 drawn by the teacher beforehand will do.
    """
    if settings.reference == "data" or (settings.posterior is not None and batch.x0 is not None):
        if batch.x0 is None:
            raise UserError(
                "The objective needs data and got none.", "Give --data FILE, or use --data teacher."
            )
        x0 = batch.x0
        return Reference(teacher.process.corrupt(x0, moments.t, noise.uniform("corrupt", x0.shape[1])), x0)
    needs_x0 = settings.branch == "both" or (settings.alpha.kind != "zero" and settings.alpha.scale != 0)
    needs_x0 = needs_x0 or settings.posterior is not None
    with torch.no_grad():
        return trajectory(teacher, batch.label, moments.t, settings.reference_steps, noise, needs_x0)


def trajectory(
    teacher: Denoiser, label: Tensor | None, t: Tensor, steps: int, noise: Noise, to_zero: bool
) -> Reference:
    """The teacher's own samples at t: the r_t of theorem main on the grid {i / steps} ∪ {t}.

    Each sample walks down the grid and makes its last step to its own t exactly; with `to_zero` it goes on
    from there to x0. A sample's path does not depend on the others; finished samples cost nothing.
    """
    grid = [i / steps for i in range(steps, -1, -1)]
    x = teacher.process.prior(noise.uniform("reference/prior", teacher.length))
    now = torch.ones_like(t)
    for k, below in enumerate(grid[1:]):
        x, now = _walk(teacher, label, x, now, t.clamp_min(below), noise.at("reference", k))
    x_t = x
    if to_zero:
        for k, below in enumerate(grid[1:]):
            x, now = _walk(teacher, label, x, now, now.clamp_max(below), noise.at("reference/on", k))
    return Reference(x_t, x if to_zero else None)


def _walk(
    teacher: Denoiser, label: Tensor | None, x: Tensor, now: Tensor, goal: Tensor, noise: Noise
) -> tuple[Tensor, Tensor]:
    """One analytical step from `now` to `goal`, both `(B,)`, for the samples that are not there yet."""
    moving = (goal < now).nonzero().squeeze(1)
    if not len(moving):
        return x, now
    lam = teacher.draw_latent(noise, "lam", x, now, label)
    prediction = teacher.predict(
        x[moving],
        now[moving],
        None if label is None else label[moving],
        None if lam is None else lam[moving],
    )
    uniform = noise.uniform("step", x.shape[1], 2)[moving]
    x = x.clone()
    x[moving] = teacher.process.step(prediction.log_probs, prediction.x_t, now[moving], goal[moving], uniform)
    return x, torch.minimum(now, goal)
