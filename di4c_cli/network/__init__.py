"""Networks: weights and forward passes. This module says what each offers and builds one by its type."""

from __future__ import annotations

from importlib import import_module
from typing import TYPE_CHECKING, Any, Protocol

from di4c_cli.errors import UserError

if TYPE_CHECKING:
    from torch import Tensor, nn

NETWORK_CLASSES = {"dit": "DiT", "maskgit": "MaskGit", "unet": "UNet", "llama": "Llama", "bert": "Bert"}


class Network(Protocol):
    """Hidden states and head are separate, so that the head runs only where it is needed."""

    symbols: int
    length: int
    width: int

    def body(self, x: Tensor, t: Tensor, label: Tensor | None = None, lam: Tensor | None = None) -> Tensor:
        """x `(B, D)`, t `(B,)` -> hidden states `(B, D, H)`."""

    def head(self, h: Tensor, d: Tensor) -> Tensor:
        """Hidden states `(n, H)` at positions d `(n,)` -> logits `(n, S)` over the real symbols."""


def build(config: dict[str, Any]) -> nn.Module:
    """A network with fresh weights from its configuration: "type" and the constructor's arguments."""
    settings = dict(config)
    kind = settings.pop("type", None)
    if kind not in NETWORK_CLASSES:
        raise UserError(f"Network type {kind!r} is unknown.", f"Choose one of: {', '.join(NETWORK_CLASSES)}.")
    module = import_module(f"{__name__}.{kind}")  # imports torch, which naming a network does not need
    network: nn.Module = getattr(module, NETWORK_CLASSES[kind])(**settings)
    return network
