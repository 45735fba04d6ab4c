"""Sizes of the published teachers, so that a dry run can say what they need before anything is fetched."""

from __future__ import annotations

from typing import Any

from di4c_cli.config import ModelConfig
from di4c_cli.teacher import registry

GPT2: dict[str, Any] = {"type": "text", "name": "gpt2"}
TEXT = {"type": "dit", "symbols": 50257, "length": 1024, "cond_dim": 128}
CODES = {
    "type": "maskgit",
    "symbols": 1024,
    "width": 768,
    "depth": 24,
    "heads": 16,
    "mlp": 3072,
    "labels": 1000,
}
PIXELS: dict[str, Any] = {
    "type": "unet",
    "symbols": 256,
    "shape": [3, 32, 32],
    "channels": 128,
    "multipliers": [1, 2, 2, 2],
    "blocks": 2,
    "attention": [1],
    "time_dim": 128,
}
SIZES: dict[int, dict[str, Any]] = {
    169627218: TEXT | {"width": 768, "depth": 12, "heads": 12},
    424477010: TEXT | {"width": 1024, "depth": 24, "heads": 16},
    863158098: TEXT | {"width": 1536, "depth": 24, "heads": 16},
    174160874: CODES | {"length": 256},
    176306666: CODES | {"length": 1024},
    35749766: PIXELS,
}
"""Networks by their number of weights, which the registry states."""


def published_config(name: str) -> ModelConfig | None:
    """The configuration a teacher of the registry has once it is fetched; None where it is not known."""
    entry = registry.entries().get(name.partition("@")[0])
    network = None if entry is None else SIZES.get(entry.parameters or 0)
    if entry is None or network is None:
        return None
    kind, labels = str(network["type"]), network.get("labels")
    process: dict[str, Any] = {
        "dit": {"type": "masked", "symbols": 50257, "schedule": "linear"},
        "maskgit": {"type": "masked", "symbols": 1024, "schedule": "arccos"},
        "unet": {"type": "gaussian", "symbols": 256},
    }[kind]
    codec: dict[str, Any] = {
        "dit": GPT2,
        "maskgit": {"type": "none"},
        "unet": {"type": "pixels", "shape": [3, 32, 32], "levels": 256},
    }[kind]
    return ModelConfig(
        kind="teacher", name=entry.name, network=network, process=process, labels=labels, codec=codec
    )
