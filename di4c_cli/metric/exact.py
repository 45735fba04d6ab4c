"""Spaces small enough to enumerate: total variation, KL, and a model's N-step distribution without sampling."""

from __future__ import annotations

import itertools

import numpy as np
import torch
from torch import Tensor

from di4c_cli.denoiser import Denoiser
from di4c_cli.errors import UserError
from di4c_cli.sampler.plan import times

MAX_STATES = 2_500
"""States above which a space is not enumerated."""


def total_variation(p: np.ndarray, q: np.ndarray) -> float:
    """½ Σ |p - q|."""
    return float(np.abs(p - q).sum() / 2)


def divergence(p: np.ndarray, q: np.ndarray) -> float:
    """KL(p ‖ q) in nats; infinite where q is 0 and p is not."""
    seen = p > 0
    if (q[seen] <= 0).any():
        return float("inf")
    return float((p[seen] * np.log(p[seen] / q[seen])).sum())


def enumerable(denoiser: Denoiser) -> bool:
    """Whether all states (the mask included) can be enumerated."""
    return bool(denoiser.length * np.log(denoiser.process.states) <= np.log(MAX_STATES))


def states(symbols: int, length: int) -> Tensor:
    """All sequences `(symbols ** length, length)`, the last position fastest."""
    return torch.tensor(list(itertools.product(range(symbols), repeat=length)))


def empirical(x: Tensor, symbols: int) -> np.ndarray:
    """Shares of each sequence among samples `(n, D)`, in the order of `states`."""
    shape = (symbols,) * x.shape[1]
    count = np.bincount(np.ravel_multi_index(tuple(x.T.numpy()), shape), minlength=int(np.prod(shape)))
    return np.asarray(count / len(x))


@torch.no_grad()
def step_distribution(denoiser: Denoiser, steps: int, latents: int = 64, grid: str = "uniform") -> np.ndarray:
    """Distribution of x_0 after `steps` analytical steps from the prior, `(S ** D,)` in the order of `states`.

    Every step is a matrix over all states: p(x_s | x_t) = E_λ Π_d p(x_s^d | x_t; λ), the mean over λ by
    `latents` midpoints of the unit interval (one for a product model). Only a scalar λ can be enumerated.
    """
    if not enumerable(denoiser):
        raise UserError("This space is too large to enumerate.", "Use sampled metrics.")
    process, length = denoiser.process, denoiser.length
    space = states(process.states, length)
    if process.mask is not None:
        distribution = (space == process.mask).all(1).double()
    else:
        distribution = process.stationary().double()[space].prod(1)  # type: ignore[attr-defined]
    points = times(steps, grid)
    for i in range(steps, 0, -1):
        t, s = (torch.full((len(space),), points[j], dtype=torch.float64) for j in (i, i - 1))
        distribution = distribution @ _transition(denoiser, space, t, s, latents)
    real = (space < process.symbols).all(1)
    out: np.ndarray = distribution[real].numpy()
    return out


def _transition(denoiser: Denoiser, space: Tensor, t: Tensor, s: Tensor, latents: int) -> Tensor:
    """`(states, states)`, rows are x_t; only the network runs on its device, which may have no float64."""
    values: list[float | None] = [None]
    if denoiser.latent is not None:
        if denoiser.latent.size != 1 or denoiser.latent.distribution != "uniform":
            raise UserError("Only a scalar uniform λ can be enumerated.", "Use sampled metrics.")
        values = [(k + 0.5) / latents for k in range(latents)]
    total = torch.zeros(len(space), len(space), dtype=torch.float64)
    given = space.to(denoiser.device), t.to(denoiser.time_dtype).to(denoiser.device)
    for value in values:
        lam = None if value is None else torch.full_like(given[1], value)
        p0 = denoiser.predict(*given, None, lam).dense().cpu().double().exp()
        step = denoiser.process.posterior(p0, space, t, s).double()  # (states, D, symbols and mask)
        joint = torch.ones_like(total)
        for d in range(space.shape[1]):
            joint *= step[:, d, space[:, d]]
        total += joint
    return total / len(values)
