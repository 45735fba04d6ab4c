"""The files of one model, told apart by content: mappings, tensor files, checkpoints. Imports no torch."""

from __future__ import annotations

import re
from collections.abc import Callable, Iterable
from dataclasses import dataclass, field
from functools import cached_property
from pathlib import Path
from typing import TYPE_CHECKING, Any

from di4c_cli.errors import UserError
from di4c_cli.files import real_path
from di4c_cli.foreign.regular import is_regular
from di4c_cli.foreign.structured import StructureError, parse_json
from di4c_cli.teacher import safe

if TYPE_CHECKING:
    from torch import Tensor

MAX_FILES = 400
NAME_MODEL = "Name a model's folder or file."
MAX_HEADER_BYTES = 100 * 2**20
TRAINING_STATE = re.compile(
    r"(training_args|optimizer|scheduler|scaler|rng_state|random_states|trainer_state)[\w.-]*"
    r"|.*\.(h5|msgpack|ot|onnx|gguf|tflite)"
)
"""Files beside the weights that no format needs: a trainer's own state, and weights for other frameworks."""


@dataclass
class ModelFiles:
    """Candidate files of one model; each kind is read when a format first asks for it."""

    name: str
    files: list[Path]
    origin: dict[str, Any] = field(default_factory=dict)
    named: Path | None = None
    """The one file the user named, if it was a file."""
    unreadable: list[UserError] = field(default_factory=list)
    """Why checkpoints were not read; no reason to refuse a model that is in another file."""

    @classmethod
    def at(cls, path: Path) -> ModelFiles:
        """A folder, or a checkpoint with the configuration files around it."""
        if path.is_dir():
            found = _inside(path)
            if not found:
                raise UserError(f"{path} holds neither a config.json nor a checkpoint.", NAME_MODEL)
            return cls(real_path(path).name, found, {"path": path.name})
        if not is_regular(path):
            raise UserError(f"{path} is not a readable file.", NAME_MODEL)
        # tauLDR keeps config/ beside checkpoints/; the other formats keep the configuration beside the weights
        around = [*_inside(path.parent, deep=False), *_inside(path.parent.parent / "config", deep=False)]
        texts = [file for file in around if file != path and safe.kind_of(file) == "text"]
        return cls(path.stem, [path, *texts], {"path": path.name}, path)

    def kind(self, wanted: str) -> list[Path]:
        """The files of one kind (see `safe.kind_of`)."""
        return [path for path, kind in self._kinds if kind == wanted]

    @cached_property
    def _kinds(self) -> list[tuple[Path, str | None]]:
        return [(path, safe.kind_of(path)) for path in self.files if is_regular(path)]

    @cached_property
    def trees(self) -> list[dict[str, Any]]:
        """JSON and YAML mappings; a file called config.json comes first where several would do."""
        paths = sorted(self.kind("text"), key=lambda path: path.name != "config.json")
        return [tree for tree in map(safe.read_tree, paths) if tree is not None]

    @cached_property
    def headers(self) -> list[tuple[Path, set[str]]]:
        """Safetensors files with the names they hold."""
        return [(path, _names(path)) for path in self.kind("safetensors")]

    @cached_property
    def checkpoints(self) -> list[tuple[Path, dict[str, Any]]]:
        """Torch checkpoints, read as data; those that cannot be read are `unreadable`."""
        from di4c_cli.teacher import pickles  # imports torch, which configurations do not need

        found = []
        for path in self.kind("pickle"):
            try:
                found.append((path, pickles.read_pickle(path)))
            except UserError as error:
                self.unreadable.append(error)
        return found

    def tree(self, fits: Callable[[dict[str, Any]], bool]) -> dict[str, Any] | None:
        """The first mapping that fits."""
        return next((tree for tree in self.trees if fits(tree)), None)

    def tensor_file(self, fits: Callable[[set[str]], bool]) -> Path | None:
        """The safetensors file whose names fit; if several do, the user has to choose."""
        return self.only([path for path, names in self.headers if fits(names)])

    def checkpoint(self, fits: Callable[[dict[str, Any]], bool]) -> tuple[Path, dict[str, Any]] | None:
        """The checkpoint that fits."""
        found = {path: tree for path, tree in self.checkpoints if fits(tree)}
        path = self.only(list(found))
        return None if path is None else (path, found[path])

    def only(self, paths: list[Path]) -> Path | None:
        """The file, if there is one; several are the user's choice."""
        if len(paths) > 1:
            names = ", ".join(path.name for path in paths[:3])
            raise UserError(f"{self.name} holds several models ({names}).", "Name one of the files.")
        return paths[0] if paths else None

    def shards(self) -> list[Path]:
        """The files that an index of sharded weights lists, safetensors if there are; none if one file has all."""
        maps = [tree["weight_map"] for tree in self.trees if isinstance(tree.get("weight_map"), dict)]
        found = {path.name: path for path in reversed(self.files)}
        if not maps or self.named is not None or "model.safetensors" in found:
            return []
        listed = ({str(name) for name in each.values()} for each in maps)
        names = min(listed, key=lambda each: not any(name.endswith(".safetensors") for name in each))
        for name in names - found.keys():
            raise UserError(f"{self.name} lacks the shard {name!r} of its index.", "Fetch it again.")
        return [found[name] for name in sorted(names)]

    def tensors(self, path: Path) -> dict[str, Tensor]:
        """All tensors of a safetensors file."""
        from di4c_cli.model_folder import read_tensors  # imports torch, which configurations do not need

        return read_tensors(path)


def _inside(folder: Path, deep: bool = True) -> list[Path]:
    """Regular files of a folder and, if `deep`, of the folders in it; hidden ones are left out."""
    found: list[Path] = []
    inner: list[Path] = []
    if not folder.is_dir():
        return found
    for path in sorted(folder.iterdir())[:MAX_FILES]:
        if path.name.startswith(".") or TRAINING_STATE.fullmatch(path.name):
            continue
        if is_regular(path):
            found.append(path)
        elif deep and path.is_dir() and not path.is_symlink():
            inner += _inside(path, deep=False)
    return [*found, *inner][:MAX_FILES]


def _names(path: Path) -> set[str]:
    """Names in a safetensors header; none if it is unreadable (`read_tensors` gives the reason)."""
    try:
        with path.open("rb") as handle:
            length = int.from_bytes(handle.read(8), "little")
            if length > min(MAX_HEADER_BYTES, path.stat().st_size):
                return set()
            header = parse_json(handle.read(length))
    except (OSError, StructureError):
        return set()
    return set(header) - {"__metadata__"} if isinstance(header, dict) else set()


def is_own_config(tree: dict[str, Any]) -> bool:
    """Whether a mapping is a config.json of our own: it has a format number."""
    return "di4c" in tree and "network" in tree


def has_suffix(names: Iterable[Any], ending: str) -> bool:
    """Whether a name is or ends with `ending` after a dot: formats differ in their prefixes."""
    return any(isinstance(name, str) and (name == ending or name.endswith(f".{ending}")) for name in names)
