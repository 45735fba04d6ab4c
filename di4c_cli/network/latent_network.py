"""Transformers that may be conditioned on λ: the one `latent_*` module that presents it, and a learned law of λ."""

from __future__ import annotations

from typing import Any

import torch
from torch import Tensor, nn

from di4c_cli.network.latent import (
    LatentEmbedding,
    LatentField,
    LatentFilm,
    LatentLocal,
    latent_settings,
    shape_settings,
)
from di4c_cli.network.law import LatentLaw

MODULES = {
    "token": "latent_projection",
    "film": "latent_film",
    "field": "latent_field",
    "local": "latent_local",
}
"""The name of the one λ module that a transformer has."""


class LatentNetwork(nn.Module):
    """A transformer that may be conditioned on λ; holds one `latent_*` module or none, and maybe `latent_law`."""

    latent: dict[str, Any] | None

    def add_latent(
        self,
        latent: dict[str, Any] | None,
        width: int,
        depth: int,
        parts: int,
        length: int,
        states: int,
        labels: int | None = None,
    ) -> None:
        """Create the λ modules. Call it last: the published order of parameters ends with them."""
        self.latent = latent_settings(latent)
        if self.latent is None:
            return
        settings = shape_settings(self.latent)
        if self.latent["inject"] == "token":
            self.latent_projection = LatentEmbedding(width, **settings)
        elif self.latent["inject"] == "film":
            self.latent_film = LatentFilm(width, depth, parts, **settings)
        elif self.latent["inject"] == "field":
            self.latent_field = LatentField(width, length, **settings)
        else:
            self.latent_local = LatentLocal(width, length, **settings)
        if "law" in self.latent:
            places = length if self.latent["inject"] == "local" else 1
            self.latent_law = LatentLaw(
                self.latent["law"], self.latent["dim"], places, states, length, labels
            )

    def latent_vectors(self, lam: Tensor | None) -> tuple[Tensor | None, Tensor | None]:
        """λ -> (token `(B, 1, H)` or None, modulations `(B, depth, parts, H)` or None)."""
        if lam is None:
            return None, None
        if self.latent is None:
            raise ValueError("λ was given to a network without λ conditioning")
        if self.latent["inject"] == "token":
            return self.latent_projection(lam)[:, None], None
        return None, self.latent_film(lam) if self.latent["inject"] == "film" else None

    def add_field(self, hidden: Tensor, lam: Tensor | None) -> Tensor:
        """Embedded positions `(B, T, H)` with λ's vectors on the first of them, where it has one for each."""
        if lam is None or self.latent is None or self.latent["inject"] not in ("field", "local"):
            return hidden
        field = self._latent_module()(lam)[:, : hidden.shape[1]].to(hidden.dtype)
        return hidden + nn.functional.pad(field, (0, 0, 0, hidden.shape[1] - field.shape[1]))

    def init_latent(self, kind: str | float = "default", generator: torch.Generator | None = None) -> None:
        """Redraw the λ weights alone; see `LatentMlp.init_latent`."""
        if self.latent is None:
            raise ValueError("a network without λ conditioning has no λ weights to initialise")
        self._latent_module().init_latent(kind, generator)
        if "law" in self.latent:
            self.latent_law.init_latent(generator)

    def _latent_module(self) -> Any:
        assert self.latent is not None
        return getattr(self, MODULES[self.latent["inject"]])
