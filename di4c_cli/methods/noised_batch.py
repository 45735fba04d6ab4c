"""Noised training batches: x_t from corrupted data, or from the teacher's own trajectory without data."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Protocol

import torch
from torch import Tensor

from di4c_cli.denoiser import Denoiser
from di4c_cli.errors import UserError
from di4c_cli.methods.di4c_times import SampledTimes
from di4c_cli.noise import Noise
from di4c_cli.process import Process


class TrainingSamples(Protocol):
    """A batch of the data: numbered samples, x0 `(B, D)` and label `(B,)` if there are any."""

    @property
    def index(self) -> list[int]: ...

    @property
    def x0(self) -> Tensor | None: ...

    @property
    def label(self) -> Tensor | None: ...


@dataclass(frozen=True)
class NoisedBatch:
    """x_t ~ r_t `(B, D)` with its times, its label and, where it is known, the x0 it belongs to."""

    x_t: Tensor
    x0: Tensor | None
    label: Tensor | None
    times: SampledTimes
    noise: Noise


def corrupt_data(process: Process, batch: TrainingSamples, t: Tensor, noise: Noise) -> tuple[Tensor, Tensor]:
    """x_t and x0 `(B, D)` from the forward process."""
    if batch.x0 is None:
        raise UserError("The method needs data and got none.", "Give --data FILE, or use --data teacher.")
    return process.corrupt(batch.x0, t, noise.uniform("corrupt", batch.x0.shape[1])), batch.x0


@torch.no_grad()
def teacher_trajectory(
    teacher: Denoiser, label: Tensor | None, t: Tensor, steps: int, noise: Noise, to_zero: bool
) -> tuple[Tensor, Tensor | None]:
    """x_t and maybe x0 `(B, D)`, sampled by the teacher: the r_t of theorem 2 on the grid {i / steps} ∪ {t}.

    Each sample follows the grid and makes its last step to its own t; with `to_zero` it continues to x0. A sample
    does not depend on the other samples of the batch, and finished samples cost nothing.
    """
    grid = [i / steps for i in range(steps, -1, -1)]
    x = teacher.process.prior(noise.uniform("reference/prior", teacher.length))
    now = torch.ones_like(t)
    for k, below in enumerate(grid[1:]):
        x, now = _step_to(teacher, label, x, now, t.clamp_min(below), noise.at("reference", k))
    x_t = x
    if to_zero:
        for k, below in enumerate(grid[1:]):
            x, now = _step_to(teacher, label, x, now, now.clamp_max(below), noise.at("reference/on", k))
    return x_t, x if to_zero else None


def _step_to(
    teacher: Denoiser, label: Tensor | None, x: Tensor, now: Tensor, goal: Tensor, noise: Noise
) -> tuple[Tensor, Tensor]:
    """One analytical step from `now` to `goal`, both `(B,)`, for the samples above their goal."""
    moving = (goal < now).nonzero().squeeze(1)
    if not len(moving):
        return x, now
    lam = teacher.draw_latent(noise, "lam", x, now, label)
    prediction = teacher.predict(
        x[moving], now[moving], None if label is None else label[moving], None if lam is None else lam[moving]
    )
    uniform = noise.uniform("step", x.shape[1], 2)[moving]
    x = x.clone()
    x[moving] = teacher.process.step(prediction.log_probs, prediction.x_t, now[moving], goal[moving], uniform)
    return x, torch.minimum(now, goal)
