"""How λ enters a network: as one more token (the paper's way), as a modulation of every block, as a field, or locally.

Which distribution λ follows and when it is drawn is the denoiser's business; here a given λ becomes vectors.
"""

from __future__ import annotations

import math
from contextlib import AbstractContextManager, nullcontext
from typing import Any, cast

import torch
from torch import Tensor, nn

from di4c_cli.errors import UserError

FEATURES = 128  # width of the sinusoid features of one λ component, as published
HIDDEN = 512  # hidden width of the published λ projection, whatever the size of the network
SCALE = 1000.0  # λ in [0, 1) is stretched to the range of positions the features were made for
CHOICES = {
    "inject": ("token", "film", "field", "local"),
    "features": ("sinusoid", "raw"),
    "distribution": ("uniform", "normal"),
}


def sinusoid(value: Tensor, width: int, cosines_first: bool = False) -> Tensor:
    """Sine and cosine features of `value` (...,) -> (..., width), in the dtype of `value`.

    The published networks mix two conventions: sines first with exponents i/(half-1) for λ and the U-Net's
    time, cosines first with exponents i/half for the DiT's noise level.
    """
    half = width // 2
    index = torch.arange(half, dtype=value.dtype, device=value.device)
    frequency = torch.exp(index * (-math.log(10000.0) / (half if cosines_first else half - 1)))
    angle = value[..., None] * frequency
    parts = (angle.cos(), angle.sin()) if cosines_first else (angle.sin(), angle.cos())
    return torch.cat(parts, dim=-1)


def precise(dtype: torch.dtype) -> torch.dtype:
    """`dtype`, or float32 where half precision would blur angles such as 1000 λ."""
    return torch.promote_types(dtype, torch.float32)


def without_autocast(device: torch.device) -> AbstractContextManager[None]:
    """For what steers everything and costs little, λ and the time: it stays precise."""
    if torch.amp.is_autocast_available(device.type):
        return cast("AbstractContextManager[None]", torch.autocast(device.type, enabled=False))
    return nullcontext()  # the meta device, for estimates


def latent_settings(latent: dict[str, Any] | None) -> dict[str, Any] | None:
    """The λ part of a network's configuration with every default written out; None for a product model."""
    if latent is None:
        return None
    dim = int(latent.get("dim", 1))
    full = {"inject": "token", "distribution": "uniform"}
    full |= {key: value for key, value in latent.items() if value is not None}
    plain = dim > 1 or full["inject"] == "local"
    full = {"features": "raw" if plain else "sinusoid"} | full
    if dim < 1 or set(full) - set(CHOICES) - {"dim", "law"}:
        raise UserError(
            f"λ needs dim ≥ 1 and only the settings dim, law, {', '.join(CHOICES)}, not {latent}.",
            "Correct the section `latent`.",
        )
    for key, allowed in CHOICES.items():
        if full[key] not in allowed:
            raise UserError(f"λ setting {key} is {full[key]!r}.", f"Choose one of: {', '.join(allowed)}.")
    if "law" in full and (int(full["law"]) < 1 or full["distribution"] != "normal"):
        raise UserError("A law of λ needs a width of at least 1 and normal noise.", "Correct `latent.law`.")
    return {**full, "dim": dim}


def shape_settings(latent: dict[str, Any]) -> dict[str, Any]:
    """What the module that presents λ is made from: neither how it enters nor how it is drawn."""
    return {key: value for key, value in latent.items() if key not in ("inject", "law")}


def reset_linear(layer: nn.Linear | nn.Conv1d, std: float | None, generator: torch.Generator | None) -> None:
    """Torch's own initialisation, or with `std` a normal weight and zero bias.

    The numbers are drawn on the CPU and copied, so that one seed gives one student on any device.
    """
    assert layer.bias is not None
    weight, bias = torch.empty(layer.weight.shape), torch.zeros(layer.bias.shape)
    if std is None:
        bound = 1.0 / math.sqrt(layer.weight[0].numel())
        weight.uniform_(-bound, bound, generator=generator)
        bias.uniform_(-bound, bound, generator=generator)
    else:
        weight.normal_(0.0, std, generator=generator) if std > 0 else weight.zero_()
    with torch.no_grad():
        layer.weight.copy_(weight)
        layer.bias.copy_(bias)


class LatentMlp(nn.Sequential):
    """λ features through linear, exact GELU, linear; the state-dict keys are `0.*` and `2.*`."""

    default_std: float | None = None  # of the last layer; None is torch's own initialisation

    def __init__(self, hidden: int, out: int, dim: int, features: str, distribution: str) -> None:
        entries = dim * (FEATURES if features == "sinusoid" else 1)
        super().__init__(nn.Linear(entries, hidden), nn.GELU(), nn.Linear(hidden, out))
        self.dim, self.kind, self.distribution = dim, features, distribution

    def features(self, lam: Tensor) -> Tensor:
        """λ `(B,)` or `(B, dim)` -> `(B, features)` in the weights' dtype."""
        dtype = next(self.parameters()).dtype
        lam = lam.reshape(-1, self.dim).to(precise(dtype))
        if self.kind == "sinusoid":
            lam = sinusoid(SCALE * lam, FEATURES).flatten(1)
        elif self.distribution == "uniform":
            lam = 2 * lam - 1  # centred, so that the first layer sees signs and not an offset
        return lam.to(dtype)

    def forward(self, lam: Tensor) -> Tensor:
        """λ `(B,)` or `(B, dim)` -> `(B, out)`."""
        return super().forward(self.features(lam))

    def init_latent(self, kind: str | float = "default", generator: torch.Generator | None = None) -> None:
        """Redraw the weights; the last layer by `kind`: "default", "zero" or the std of a normal draw."""
        if isinstance(kind, str) and kind not in ("default", "zero"):
            raise UserError(f"λ initialisation {kind!r} is unknown.", 'Use "default", "zero" or a number.')
        std = self.default_std if kind == "default" else 0.0 if kind == "zero" else float(kind)
        first, last = (layer for layer in self if isinstance(layer, nn.Linear))
        reset_linear(first, None, generator)
        reset_linear(last, std, generator)


class LatentEmbedding(LatentMlp):
    """λ as one vector of the network's width: the published `latent_projection`."""

    def __init__(
        self,
        width: int,
        dim: int = 1,
        features: str = "sinusoid",
        distribution: str = "uniform",
        hidden: int = HIDDEN,
    ) -> None:
        super().__init__(hidden, width, dim, features, distribution)


class LatentFilm(LatentMlp):
    """λ as `parts` modulation vectors for each of `depth` blocks, added to those the block has already."""

    def __init__(
        self,
        width: int,
        depth: int,
        parts: int = 4,
        dim: int = 1,
        features: str = "sinusoid",
        distribution: str = "uniform",
    ) -> None:
        hidden = min(HIDDEN, 2 * width)
        super().__init__(hidden, depth * parts * width, dim, features, distribution)
        self.shape = (depth, parts, width)
        # Modulations of about 0.1 at any width. Zero would start at a student that ignores λ, which is a
        # saddle point of the correlation loss.
        self.default_std = 0.5 / math.sqrt(hidden)
        self.init_latent()

    def forward(self, lam: Tensor) -> Tensor:
        """λ `(B,)` or `(B, dim)` -> `(B, depth, parts, width)`."""
        return super().forward(lam).unflatten(1, self.shape)


RANK = 32
"""Most profiles over the positions that a field is made of."""


class LatentField(nn.Module):
    """λ as a vector at every position, Σ_r profile_r(d) · c_r(λ): what a modulation, alike everywhere, cannot say."""

    def __init__(
        self,
        width: int,
        length: int,
        dim: int = 1,
        features: str = "sinusoid",
        distribution: str = "uniform",
    ) -> None:
        super().__init__()
        self.rank, self.width = min(RANK, length), width
        self.parts = LatentMlp(min(HIDDEN, 2 * width), self.rank * width, dim, features, distribution)
        self.parts.default_std = 0.5 / math.sqrt(min(HIDDEN, 2 * width))
        self.profiles = nn.Parameter(torch.empty(self.rank, length))
        self.init_latent()

    def forward(self, lam: Tensor) -> Tensor:
        """λ `(B,)` or `(B, dim)` -> `(B, length, width)`."""
        return torch.einsum(
            "brh,rd->bdh", self.parts(lam).unflatten(1, (self.rank, self.width)), self.profiles
        )

    def init_latent(self, kind: str | float = "default", generator: torch.Generator | None = None) -> None:
        """Redraw the weights; see `LatentMlp.init_latent`. The profiles are random directions."""
        self.parts.init_latent(kind, generator)
        with torch.no_grad():
            shape = self.profiles.shape
            self.profiles.copy_(torch.randn(shape, generator=generator) / math.sqrt(self.rank))


class LatentLocal(LatentMlp):
    """λ of `dim` numbers at every position, as a vector there: attention lets neighbours agree on what they say."""

    def __init__(
        self,
        width: int,
        length: int,
        dim: int = 1,
        features: str = "sinusoid",
        distribution: str = "uniform",
    ) -> None:
        hidden = min(HIDDEN, 2 * width)
        super().__init__(hidden, width, dim, features, distribution)
        self.length, self.default_std = length, 0.5 / math.sqrt(hidden)
        self.init_latent()

    def forward(self, lam: Tensor) -> Tensor:
        """λ `(B, length·dim)` -> `(B, length, width)`."""
        if lam.shape[-1] != self.length * self.dim:
            raise ValueError(f"λ has {lam.shape[-1]} numbers a sample instead of {self.length * self.dim}")
        return super().forward(lam).unflatten(0, (-1, self.length))
