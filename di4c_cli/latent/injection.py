"""How λ enters a network: as one more token (the paper's way), as a modulation, as a field, or at every position.

The denoiser draws λ. The modules of this file map a given λ to vectors of the network's width.
"""

from __future__ import annotations

import math
from collections.abc import Mapping
from typing import Any, cast

import torch
from torch import Tensor, nn

from di4c_cli.latent.config import LatentConfig
from di4c_cli.latent.prior import LearnedPrior
from di4c_cli.numerics import precise, reset_linear, sinusoid

SINUSOID_WIDTH = 128
"""Width of the sinusoid features of one λ component, as published."""
PUBLISHED_HIDDEN = 512
"""Hidden width of the published λ projection, for networks of every size."""
SINUSOID_SCALE = 1000.0
"""Factor that maps λ in [0, 1) to the range of positions for which the sinusoids were designed."""
MAX_FIELD_RANK = 32
"""Largest number of profiles over the positions in a field."""


class LatentMlp(nn.Sequential):
    """λ features through linear, exact GELU, linear; the state-dict keys are `0.*` and `2.*`."""

    def __init__(self, out: int, latent: LatentConfig, width: int | None = None) -> None:
        """`width`: of the network that λ modulates; None is the published projection."""
        self.kind, dim = latent.presentation, latent.dim
        hidden = PUBLISHED_HIDDEN if width is None else min(PUBLISHED_HIDDEN, 2 * width)
        entries = dim * (SINUSOID_WIDTH if self.kind == "sinusoid" else 1)
        super().__init__(nn.Linear(entries, hidden), nn.GELU(), nn.Linear(hidden, out))
        self.dim, self.distribution = dim, latent.distribution
        # Modulations of about 0.1 at any width; None is torch's own initialisation. With zeros the student would ignore
        # λ, which is a saddle point of the correlation loss.
        self.default_std = None if width is None else 0.5 / math.sqrt(hidden)

    def features(self, lam: Tensor) -> Tensor:
        """λ `(B,)` or `(B, dim)` -> `(B, features)` in the weights' dtype."""
        dtype = next(self.parameters()).dtype
        lam = lam.reshape(-1, self.dim).to(precise(dtype))
        if self.kind == "sinusoid":
            lam = sinusoid(SINUSOID_SCALE * lam, SINUSOID_WIDTH).flatten(1)
        elif self.distribution == "uniform":
            lam = 2 * lam - 1  # centred: an offset would hide the sign from the first layer
        return lam.to(dtype)

    def forward(self, lam: Tensor) -> Tensor:
        """λ `(B,)` or `(B, dim)` -> `(B, out)`."""
        out: Tensor = super().forward(self.features(lam))  # type: ignore[no-untyped-call]
        return out

    def init_latent(self, kind: str | float = "default", generator: torch.Generator | None = None) -> None:
        """Redraw the weights; the last layer by `kind`: "default", "zero" or the std of a normal draw."""
        std = self.default_std if kind == "default" else 0.0 if kind == "zero" else float(kind)
        first, last = (layer for layer in self if isinstance(layer, nn.Linear))
        reset_linear(first, None, generator)
        reset_linear(last, std, generator)


class LatentFilm(LatentMlp):
    """λ as `parts` modulation vectors for each of `depth` blocks, added to the block's own modulation."""

    def __init__(self, width: int, depth: int, parts: int, latent: LatentConfig) -> None:
        super().__init__(depth * parts * width, latent, width)
        self.shape = (depth, parts, width)
        self.init_latent()

    def forward(self, lam: Tensor) -> Tensor:
        """λ `(B,)` or `(B, dim)` -> `(B, depth, parts, width)`."""
        out: Tensor = super().forward(lam).unflatten(1, self.shape)
        return out


class LatentField(nn.Module):
    """λ as a different vector at every position, Σ_r profile_r(d) · c_r(λ)."""

    def __init__(self, width: int, length: int, latent: LatentConfig) -> None:
        super().__init__()
        self.rank, self.width = min(MAX_FIELD_RANK, length), width
        self.parts = LatentMlp(self.rank * width, latent, width)
        self.profiles = nn.Parameter(torch.empty(self.rank, length))
        self.init_latent()

    def forward(self, lam: Tensor) -> Tensor:
        """λ `(B,)` or `(B, dim)` -> `(B, length, width)`."""
        parts = self.parts(lam).unflatten(1, (self.rank, self.width))
        return torch.einsum("brh,rd->bdh", parts, self.profiles)

    def init_latent(self, kind: str | float = "default", generator: torch.Generator | None = None) -> None:
        """Redraw the weights; see `LatentMlp.init_latent`. The profiles are random directions."""
        self.parts.init_latent(kind, generator)
        with torch.no_grad():
            shape = self.profiles.shape
            self.profiles.copy_(torch.randn(shape, generator=generator) / math.sqrt(self.rank))


class LatentLocal(LatentMlp):
    """λ of `dim` numbers at every position, as a vector there; attention correlates neighbouring positions."""

    def __init__(self, width: int, length: int, latent: LatentConfig) -> None:
        super().__init__(width, latent, width)
        self.length = length
        self.init_latent()

    def forward(self, lam: Tensor) -> Tensor:
        """λ `(B, length·dim)` -> `(B, length, width)`."""
        if lam.shape[-1] != self.length * self.dim:
            raise ValueError(f"λ has {lam.shape[-1]} numbers a sample instead of {self.length * self.dim}")
        out: Tensor = super().forward(lam).unflatten(0, (-1, self.length))
        return out


class ConditionedTransformer(nn.Module):
    """Base of the transformers that λ may condition: one injection module or none, and maybe a learned prior."""

    symbols: int
    length: int
    width: int
    latent: LatentConfig | None

    def add_latent(
        self, latent: LatentConfig | Mapping[str, Any] | None, depth: int, parts: int, labels: int | None = None
    ) -> None:
        """Create the λ modules. Call it last: the published order of parameters ends with them."""
        self.latent = None if latent is None else LatentConfig.model_validate(latent)
        if self.latent is None:
            return
        if self.latent.inject == "token":
            self.latent_projection = LatentMlp(self.width, self.latent)
        elif self.latent.inject == "film":
            self.latent_film = LatentFilm(self.width, depth, parts, self.latent)
        elif self.latent.inject == "field":
            self.latent_field = LatentField(self.width, self.length, self.latent)
        else:
            self.latent_local = LatentLocal(self.width, self.length, self.latent)
        if self.latent.prior == "learned":
            sizes = self.latent.prior_width, self.latent.dim, self.length if self.latent.inject == "local" else 1
            self.latent_prior = LearnedPrior(*sizes, self.symbols + 1, self.length, labels)

    def body(
        self, x: Tensor, t: Tensor, label: Tensor | None = None, lam: Tensor | None = None, at: Tensor | None = None
    ) -> Tensor:
        """Hidden states `(B, D, H)`; with `at` (n,) those of the given positions only, `(B, n, H)`."""
        raise NotImplementedError

    def latent_vectors(self, lam: Tensor | None) -> tuple[Tensor | None, Tensor | None]:
        """λ -> (token `(B, 1, H)` or None, modulations `(B, depth, parts, H)` or None)."""
        if lam is None:
            return None, None
        if self.latent is None:
            raise ValueError("λ was given to a network without λ conditioning")
        if self.latent.inject == "token":
            return self.latent_projection(lam)[:, None], None
        return None, self.latent_film(lam) if self.latent.inject == "film" else None

    def add_field(self, hidden: Tensor, lam: Tensor | None) -> Tensor:
        """Embedded positions `(B, T, H)`, plus λ's vector at each of them for `field` and `local`."""
        if lam is None or self.latent is None or self.latent.inject not in ("field", "local"):
            return hidden
        field = self._injection()(lam)[:, : hidden.shape[1]].to(hidden.dtype)
        return hidden + nn.functional.pad(field, (0, 0, 0, hidden.shape[1] - field.shape[1]))

    def init_latent(self, kind: str | float = "default", generator: torch.Generator | None = None) -> None:
        """Redraw the λ weights alone; see `LatentMlp.init_latent`."""
        if self.latent is None:
            raise ValueError("a network without λ conditioning has no λ weights to initialise")
        self._injection().init_latent(kind, generator)
        if self.latent.prior == "learned":
            self.latent_prior.init_latent(generator)

    def _injection(self) -> LatentMlp | LatentField:
        assert self.latent is not None
        name = "projection" if self.latent.inject == "token" else self.latent.inject
        return cast("LatentMlp | LatentField", getattr(self, f"latent_{name}"))
