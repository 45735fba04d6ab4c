"""A teacher's own trajectory, stopped: samples of r_t without data (theorem 2, `reference: teacher`)."""

from __future__ import annotations

import torch
from torch import Tensor

from di4c_cli.denoiser import Denoiser
from di4c_cli.noise import Noise
from di4c_cli.sampler.analytical import analytical_step, noise_of
from di4c_cli.sampler.grid import times
from di4c_cli.sampler.predictor import Predictor
from di4c_cli.sampler.settings import Settings

SLACK = 1e-6
"""A stop this close to a grid point is that point: i/N in float32 is not i/N in float64."""


@torch.no_grad()
def trajectory(
    denoiser: Denoiser,
    steps: int,
    noise: Noise,
    stop: Tensor,
    label: Tensor | None = None,
    length: int | None = None,
    grid: str = "uniform",
    finish: bool = False,
) -> tuple[Tensor, Tensor]:
    """Run the analytical sampler in `steps` steps from t = 1; each sample stops at its own time `stop` (B,).

    Returns `(x_stop, x_end)`, both `(B, D)` long: the state at `stop` and, with `finish`, the same walk
    continued to t = 0 (without it, x_end is x_stop). The grid is `sampler.grid.times(steps, grid)`; a stop
    between two points is reached by a shorter step, after which the walk goes on to the next point. A sample
    that has stopped for good costs no network call. A mixture denoiser gets a fresh λ at every step. Draws
    come from `noise` by name; the batch is run as it comes, without tiles.
    """
    walk = _Walk(denoiser, noise, label, length or denoiser.length)
    points = times(steps, grid)
    stop = _snapped(stop.to(denoiser.device, torch.float64), points)
    x = kept = walk.start()
    now = torch.ones_like(stop)
    for i in range(steps, 0, -1):
        for part in ("until stop", "after"):
            below = torch.full_like(stop, points[i - 1])
            goal = torch.where(now > stop, torch.maximum(stop, below), below if finish else now)
            x, now = walk.move(x, now, torch.minimum(now, goal), walk.noise.at("step", i, part))
            kept = torch.where((now >= stop)[:, None], x, kept)
    return kept, x if finish else kept


def _snapped(stop: Tensor, points: list[float]) -> Tensor:
    """`stop` (B,) moved to a grid point that lies within SLACK."""
    grid = torch.tensor(points, dtype=stop.dtype, device=stop.device)
    nearest = grid[(stop[:, None] - grid).abs().argmin(1)]
    return torch.where((stop - nearest).abs() < SLACK, nearest, stop)


class _Walk:
    """A batch in which every sample has a time of its own."""

    def __init__(self, denoiser: Denoiser, noise: Noise, label: Tensor | None, length: int) -> None:
        self.denoiser, self.label, self.length = denoiser, label, length
        self.noise = Noise(noise.seed, noise.index, noise.stream, denoiser.device)

    def start(self) -> Tensor:
        return self.denoiser.process.prior(self.noise.at("start").uniform("prior", self.length))

    def move(self, x: Tensor, now: Tensor, goal: Tensor, noise: Noise) -> tuple[Tensor, Tensor]:
        """One analytical step for the samples whose `goal` (B,) is below `now` (B,); the others stay."""
        active = (goal < now).nonzero().squeeze(1)
        if len(active) == 0:
            return x, now
        label = None if self.label is None else self.label.to(x.device)[active]
        ask = Predictor(self.denoiser, Settings(tile=0), self.length, label)
        own = noise_of(noise, active.tolist())
        x = x.clone()
        x[active] = analytical_step(ask, x[active], now[active], goal[active], own)
        return x, goal
