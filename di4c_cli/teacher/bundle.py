"""What a format adapter hands over: our description of the model and its tensors under our names."""

from __future__ import annotations

from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from torch import Tensor

from di4c_cli import hub, student
from di4c_cli.config import ModelConfig
from di4c_cli.errors import UserError
from di4c_cli.model import Model
from di4c_cli.teacher.options import Options

__all__ = ["Bundle", "Options", "require", "strip"]


@dataclass
class Bundle:
    """A model read from any format, before its network exists."""

    config: ModelConfig
    tensors: dict[str, Tensor]
    where: str
    renamed: dict[str, str] = field(default_factory=dict)
    unused: dict[str, str] = field(default_factory=dict)
    folder: Path | None = None
    codec_tensors: dict[str, Tensor] | None = None
    cached: list[Path] = field(default_factory=list)
    """Files of the Hub's cache that this was read from."""

    def model(self) -> Model:
        """Build the network and fill it; every tensor is accounted for."""
        try:
            denoiser, account = student.assemble(
                self.config, self.tensors, self.where, self.renamed, self.unused
            )
        except UserError as error:
            raise hub.blame(error, self.cached) from error
        return Model(self.config, denoiser, self.folder, account, self.codec_tensors)


def strip(
    tensors: dict[str, Tensor], prefixes: tuple[str, ...], reason: str = "not part of the network"
) -> tuple[dict[str, Tensor], dict[str, str], dict[str, str]]:
    """Tensors without the first fitting prefix, their old names, and the names that had no such prefix."""
    kept: dict[str, Tensor] = {}
    renamed: dict[str, str] = {}
    unused: dict[str, str] = {}
    for name, tensor in tensors.items():
        prefix = next((p for p in prefixes if name.startswith(p)), None)
        if prefix is None:
            unused[name] = reason
            continue
        ours = name.removeprefix(prefix).replace("_orig_mod.", "")
        if ours in kept:
            raise UserError(
                f"Two tensors are called '{ours}' once prefixes are dropped.", "Fetch the file again."
            )
        kept[ours], renamed[ours] = tensor, name
    return kept, renamed, unused


def require(tree: dict[str, Any], key: str, kind: type, where: str) -> Any:
    """A value of a foreign configuration, by dotted key, or one sentence about its absence."""
    value: Any = tree
    for part in key.split("."):
        value = value.get(part) if isinstance(value, dict) else None
    fits = isinstance(value, kind) and not (kind is not bool and isinstance(value, bool))
    if kind is float and isinstance(value, int) and not isinstance(value, bool):
        return float(value)
    if not fits:
        raise UserError(
            f"{where} has no usable '{key}' in its configuration.", "Check the file or fetch it again."
        )
    return value
