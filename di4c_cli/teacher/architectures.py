"""The published network architectures by name, read from architectures.yaml; no weights. Imports no torch."""

from __future__ import annotations

from functools import lru_cache
from pathlib import Path
from typing import Any

import yaml
from pydantic import BaseModel, ConfigDict

from di4c_cli.errors import UserError


class Architecture(BaseModel):
    """One published network; `parameters` counts the weights of a teacher, which has no λ."""

    model_config = ConfigDict(extra="forbid", frozen=True)
    parameters: int
    network: dict[str, Any]
    process: dict[str, Any]
    codec: dict[str, Any]


@lru_cache(maxsize=1)
def architectures() -> dict[str, Architecture]:
    """All architectures by name."""
    tree = yaml.safe_load(Path(__file__).with_suffix(".yaml").read_text(encoding="utf-8"))
    return {name: Architecture.model_validate(entry) for name, entry in tree.items()}


def architecture(name: str) -> Architecture:
    """A copy of the architecture of that name."""
    if name not in architectures():
        raise UserError(f"Architecture '{name}' is unknown.", f"Choose one of: {', '.join(architectures())}.")
    return architectures()[name].model_copy(deep=True)


def network_settings(name: str, **changes: Any) -> dict[str, Any]:
    """Settings for `network.build`, with `changes` applied, such as `length=256`."""
    return {**architecture(name).network, **changes}


def process_settings(name: str, **changes: Any) -> dict[str, Any]:
    """Settings for `process.build`, with `changes` applied."""
    return {**architecture(name).process, **changes}
