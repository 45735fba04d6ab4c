"""A masked process small enough to list: S = 3, D = 3, a table of logits for every x_t and λ of a grid."""

from __future__ import annotations

import itertools

import torch
from torch import Tensor, nn

from di4c_cli.denoiser import Denoiser
from di4c_cli.latent.prior import LatentPrior
from di4c_cli.process import Masked

SYMBOLS, LENGTH, GRID = 3, 3, 8
STATES = SYMBOLS + 1
DATA = torch.tensor(list(itertools.product(range(SYMBOLS), repeat=LENGTH)))
"""All 27 clean configurations."""
NOISY = torch.tensor(list(itertools.product(range(STATES), repeat=LENGTH)))
"""All 64 configurations with masks."""
PLACES = torch.tensor([STATES**k for k in reversed(range(LENGTH))])


class TableNetwork(nn.Module):
    """Logits looked up by (x_t, λ): the body is the table, the head hands through."""

    def __init__(self, latents: int, seed: int, spread: float) -> None:
        super().__init__()
        g = torch.Generator().manual_seed(seed)
        shape = (len(NOISY), latents, LENGTH, SYMBOLS)
        # what all λ share is narrower than what they differ in: a mixture with a lot of correlation
        table = 0.5 * torch.randn(len(NOISY), 1, LENGTH, SYMBOLS, generator=g, dtype=torch.float64)
        table = table + spread * torch.randn(*shape, generator=g, dtype=torch.float64)
        self.table = nn.Parameter(table)
        self.length = LENGTH

    def body(self, x: Tensor, t: Tensor, label: Tensor | None = None, lam: Tensor | None = None) -> Tensor:
        latents = self.table.shape[1]
        which = torch.zeros(len(x), dtype=torch.long) if lam is None else (lam * latents).long()
        return self.table[(x * PLACES).sum(-1), which]

    def head(self, h: Tensor, d: Tensor) -> Tensor:
        return h


def student(seed: int = 1, spread: float = 1.5) -> Denoiser:
    return Denoiser(TableNetwork(GRID, seed, spread), Masked(SYMBOLS), LatentPrior())


def teacher(seed: int = 2) -> Denoiser:
    return Denoiser(TableNetwork(1, seed, 0.7), Masked(SYMBOLS))


def configurations(factors: Tensor, of: Tensor) -> Tensor:
    """Product law with factors `(..., D, K)` at the configurations `of` (C, D): `(..., C)`."""
    picked = [factors[..., d, :][..., of[:, d]] for d in range(of.shape[1])]
    return torch.stack(picked).prod(0)


def clean_laws(model: Denoiser, x: Tensor) -> Tensor:
    """p(x0|x; λ) over the 27 clean configurations for every λ: x `(N, D)` -> `(N, λ, 27)`."""
    assert isinstance(model.network, TableNetwork)
    latents = model.network.table.shape[1]
    lam = (torch.arange(latents).double() + 0.5) / latents
    many = x.repeat_interleave(latents, 0)
    with torch.no_grad():
        dense = model.predict(many, torch.zeros(len(many)), lam=lam.repeat(len(x))).dense().exp()
    return configurations(dense, DATA).view(len(x), latents, -1)


def target_law(teach: Denoiser, model: Denoiser, x_t: Tensor, t: float, u: float) -> Tensor:
    """p^θ_{0|u} ∘ p^ψ_{u|t} (·|x_t) over the 27 clean configurations, exactly: x_t `(D,)` -> `(27,)`."""
    times = (torch.tensor([value], dtype=torch.float64) for value in (t, u))
    with torch.no_grad():
        p0 = teach.predict(x_t[None], torch.tensor([t])).dense().exp()
    step = configurations(teach.process.posterior(p0, x_t[None], *times), NOISY)[0]  # (64,)
    return step @ clean_laws(model, NOISY).mean(1)
