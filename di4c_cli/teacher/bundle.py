"""What a format adapter gets and returns: `LoadOptions`, and a `Bundle` of config and tensors. Imports no torch."""

from __future__ import annotations

import warnings
from dataclasses import dataclass, field
from pathlib import Path
from typing import TYPE_CHECKING, Any, NamedTuple

from di4c_cli import hub
from di4c_cli.config import ModelConfig
from di4c_cli.errors import NameWarning, UserError

if TYPE_CHECKING:
    from torch import Tensor

    from di4c_cli.denoiser import Denoiser
    from di4c_cli.load_report import LoadReport


class TokenizerOnly(UserError):
    """The files hold an image tokenizer and no teacher."""


@dataclass
class LoadOptions:
    """Settings that the files of a model do not record, or that replace the recorded ones."""

    weights: str | None = None
    """`ema` or `live` where a file holds both; None is the one its publishers evaluate."""
    heads: int | None = None
    codes: int | None = None
    length: int | None = None
    vqgan: str | None = None
    """Path of the image tokenizer, or the name of a teacher that comes with one."""
    config: str | None = None
    """Path of a configuration that is not beside the weights."""
    tokenizer: str | None = None
    """Path of a tokenizer.json for a text model."""
    base: str | None = None
    """The teacher whose weights an adapter changes, if di4c cannot find it."""
    adapters: bool = True
    """False for the base of an adapter, which must be a whole model."""
    offline: bool = False

    def __post_init__(self) -> None:
        if self.weights not in (None, "ema", "live"):
            raise UserError(f"There are no '{self.weights}' weights.", "Choose ema or live.")
        for name in ("heads", "codes", "length"):
            value = getattr(self, name)
            if value is not None and (type(value) is not int or not 1 <= value <= 2**20):
                raise UserError(f"{name} must be an integer from 1 on, not {value!r}.", "Change the option.")

    def choose(self, default: str, both: bool, reason: str, where: str) -> str:
        """`ema` or `live`; one line says which if a file holds both and the user did not choose."""
        if both and self.weights is None:
            took, other = ("averages", "live") if default == "ema" else ("live ones", "ema")
            note = f"{where} holds two sets of weights, averages and live ones; di4c took the {took}, {reason}."
            warnings.warn(f"{note} `di4c convert --weights {other}` takes the others.", NameWarning, stacklevel=1)
        return self.weights or default


class LoadedModel(NamedTuple):
    """The arguments of `model.Model`."""

    config: ModelConfig
    denoiser: Denoiser
    folder: Path | None
    load_report: LoadReport
    codec_tensors: dict[str, Tensor] | None


@dataclass
class Bundle:
    """A model read from any format, before its network is built: `tensors` have our names.

    `renamed` maps our names to those in the file, `unused` maps names in the file to the reason for leaving them
    out. `folder` holds the codec's file; `codec_tensors` are its weights if it came from a foreign file.
    """

    config: ModelConfig
    tensors: dict[str, Tensor]
    where: str
    renamed: dict[str, str] = field(default_factory=dict)
    unused: dict[str, str] = field(default_factory=dict)
    folder: Path | None = None
    codec_tensors: dict[str, Tensor] | None = None
    cached: list[Path] = field(default_factory=list)
    """The files of the Hub's cache that this was read from."""

    def load(self) -> LoadedModel:
        """Build the network and fill it; the report covers every tensor."""
        from di4c_cli.build import assemble  # imports torch, for which a failed download need not wait

        try:
            denoiser, report = assemble(self.config, self.tensors, self.where, self.renamed, self.unused)
        except UserError as error:
            raise hub.damage_or(error, self.cached) from error
        return LoadedModel(self.config, denoiser, self.folder, report, self.codec_tensors)


def strip(tensors: dict[str, Tensor], *prefixes: str) -> tuple[dict[str, Tensor], dict[str, str], dict[str, str]]:
    """Tensors without the first fitting prefix, their old names, and the names that had no such prefix."""
    kept: dict[str, Tensor] = {}
    renamed: dict[str, str] = {}
    unused: dict[str, str] = {}
    for name, tensor in tensors.items():
        prefix = next((p for p in prefixes if name.startswith(p)), None)
        if prefix is None:
            unused[name] = "not part of the network"
            continue
        ours = name.removeprefix(prefix).replace("_orig_mod.", "")
        if ours in kept:
            raise UserError(f"Without its prefix '{ours}' occurs twice.", "Fetch the file again.")
        kept[ours], renamed[ours] = tensor, name
    return kept, renamed, unused


def require(tree: dict[str, Any], key: str, kind: type, where: str) -> Any:
    """A value of a foreign configuration by dotted key; a missing one or one of another type is an error."""
    value: Any = tree
    for part in key.split("."):
        value = value.get(part) if isinstance(value, dict) else None
    if kind is float and type(value) is int:
        return float(value)
    if type(value) is not kind:
        raise UserError(f"{where} has no usable '{key}' in its configuration.", "Fetch the file again.")
    return value
