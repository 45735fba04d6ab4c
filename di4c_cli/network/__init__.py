"""Networks: weights and forward passes; every one offers `body`, `head` and `config`."""

from __future__ import annotations

from importlib import import_module
from typing import TYPE_CHECKING, Any

from di4c_cli.errors import UserError

if TYPE_CHECKING:
    from torch import nn

TYPES = {"dit": "DiT", "maskgit": "MaskGit", "unet": "UNet"}


def build(config: dict[str, Any]) -> nn.Module:
    """A network with fresh weights from its configuration: "type" and the constructor's arguments."""
    settings = dict(config)
    kind = settings.pop("type", None)
    if kind not in TYPES:
        raise UserError(f"Network type {kind!r} is unknown.", f"Choose one of: {', '.join(TYPES)}.")
    # Imported here so that naming a network does not load torch.
    module = import_module(f"{__name__}.{kind}")
    network: nn.Module = getattr(module, TYPES[kind])(**settings)
    return network
