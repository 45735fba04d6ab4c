"""The published network architectures by name: sizes, process and codec of each; no weights. Imports no torch."""

from __future__ import annotations

from copy import deepcopy
from dataclasses import dataclass
from typing import Any

from di4c_cli.errors import UserError


@dataclass(frozen=True)
class Architecture:
    """One published network; `parameters` counts the weights of a teacher, which has no λ."""

    parameters: int
    network: dict[str, Any]
    process: dict[str, Any]
    codec: dict[str, Any]


def _dit(parameters: int, width: int, depth: int, heads: int) -> Architecture:
    """The DiT of MDLM and SDTT over GPT-2's vocabulary."""
    sizes = {"symbols": 50257, "length": 1024, "width": width, "depth": depth, "heads": heads}
    return Architecture(
        parameters,
        {"type": "dit", **sizes, "cond_dim": 128},
        {"type": "masked", "symbols": 50257, "schedule": "linear"},
        {"type": "text", "name": "gpt2"},
    )


def _maskgit(parameters: int, length: int) -> Architecture:
    """MaskGIT on ImageNet; its image tokenizer is a file of its own."""
    sizes = {"symbols": 1024, "length": length, "width": 768, "depth": 24, "heads": 16, "mlp": 3072}
    return Architecture(
        parameters,
        {"type": "maskgit", **sizes, "labels": 1000},
        {"type": "masked", "symbols": 1024, "schedule": "arccos"},
        {"type": "none"},
    )


def _unet(parameters: int) -> Architecture:
    """The U-Net of tauLDR on CIFAR-10."""
    sizes = {"symbols": 256, "shape": [3, 32, 32], "channels": 128, "multipliers": [1, 2, 2, 2]}
    return Architecture(
        parameters,
        {"type": "unet", **sizes, "blocks": 2, "attention": [1], "time_dim": 128},
        {"type": "gaussian", "symbols": 256},
        {"type": "pixels", "shape": [3, 32, 32], "levels": 256},
    )


ARCHITECTURES: dict[str, Architecture] = {
    "dit-small": _dit(169_627_218, width=768, depth=12, heads=12),
    "dit-medium": _dit(424_477_010, width=1024, depth=24, heads=16),
    "dit-large": _dit(863_158_098, width=1536, depth=24, heads=16),
    "maskgit-256": _maskgit(174_160_874, length=256),
    "maskgit-512": _maskgit(176_306_666, length=1024),
    "tauldr-unet": _unet(35_749_766),
}


def architecture(name: str) -> Architecture:
    """The architecture of that name."""
    if name not in ARCHITECTURES:
        raise UserError(f"Architecture '{name}' is unknown.", f"Choose one of: {', '.join(ARCHITECTURES)}.")
    return ARCHITECTURES[name]


def network_settings(name: str, **changes: Any) -> dict[str, Any]:
    """Settings for `network.build`, as a copy with `changes` applied, such as `length=256`."""
    return {**deepcopy(architecture(name).network), **changes}


def process_settings(name: str, **changes: Any) -> dict[str, Any]:
    """Settings for `process.build`, as a copy with `changes` applied."""
    return {**deepcopy(architecture(name).process), **changes}
