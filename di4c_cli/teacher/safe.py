"""Reading files of strangers: what kind of file it is, then its data and nothing but its data.

Pickles are read by torch's weights-only reader, which builds tensors and plain containers and calls nothing
else. Every limit is checked before anything is read into memory; whatever is wrong becomes one sentence.
"""

from __future__ import annotations

import io
import json
import pickletools
import re
import stat
import struct
import zipfile
from pathlib import Path
from typing import Any

import torch
import yaml
from torch import Tensor

from di4c_cli.errors import UserError

MAX_TEXT = 2 * 2**20
MAX_YAML = 2**18
MAX_RECORDS = 100_000
MAX_PROGRAM = 16 * 2**20
CHUNK = 2**22
REFUSED = "Ask its publisher for a safetensors file or fetch it again."


class Ignored(dict[Any, Any]):
    """Stands for a class of a training framework that old checkpoints mention beside the weights."""


INERT = (
    "pytorch_lightning.callbacks.model_checkpoint.ModelCheckpoint",
    "pytorch_lightning.callbacks.early_stopping.EarlyStopping",
    "pytorch_lightning.utilities.parsing.AttributeDict",
    "lightning.pytorch.callbacks.model_checkpoint.ModelCheckpoint",
    "lightning_fabric.utilities.data.AttributeDict",
    "lightning.fabric.utilities.data.AttributeDict",
)
"""Read as `Ignored`: early Lightning files use such classes as dictionary keys. Nothing is imported."""

ALLOWED = re.compile(
    r"collections (OrderedDict|Counter)|(builtins|__builtin__) (set|complex)|_codecs encode"
    r"|torch\._utils _rebuild_(tensor|tensor_v2|tensor_v3|parameter|parameter_with_state)"
    r"|torch\._tensor _rebuild_from_type_v2|torch\.nn\.parameter Parameter|torch\.serialization _get_layout"
    r"|torch(\.storage)? \w*Storage|torch (Size|device|b?float\d*|half|double|u?int\d+|long|short|char|bool)"
)
"""All a checkpoint needs. Torch's list is longer: its `bytearray`, for one, can be asked for 10^12 bytes."""


def is_regular(path: Path) -> bool:
    """An ordinary file, through links if need be; never a pipe or a device, whose reading might not end."""
    try:
        return stat.S_ISREG(path.stat().st_mode)
    except (OSError, ValueError):
        return False


def kind_of(path: Path) -> str | None:
    """`safetensors`, `pickle` or `text` by the first bytes, None for anything else."""
    try:
        with path.open("rb") as handle:
            head = handle.read(512)
    except OSError:
        return None
    # safetensors first: the length of its header may well begin like a pickle
    if head[8:9] == b"{" and int.from_bytes(head[:8], "little") < path.stat().st_size:
        return "safetensors"
    if head[:4] == b"PK\x03\x04" or (len(head) > 1 and head[0] == 0x80 and head[1] <= 5):
        return "pickle"
    if path.stat().st_size <= MAX_TEXT and b"\0" not in head:
        return "text"
    return None


def read_tree(path: Path) -> dict[str, Any] | None:
    """A JSON or YAML mapping, else None (JSON first: YAML 1.1 takes 1e-05 for a string)."""
    if not is_regular(path) or path.stat().st_size > MAX_TEXT:
        return None
    try:
        text = path.read_text(encoding="utf-8")
    except (OSError, UnicodeDecodeError):
        return None
    try:
        tree = json.loads(text)
    except (ValueError, RecursionError):
        tree = _read_yaml(text)
    return tree if isinstance(tree, dict) else None


class _Loader(yaml.SafeLoader):
    """Plain values only; tuples, which some configurations were saved with, are read as lists."""


def _list(loader: _Loader, node: yaml.SequenceNode) -> list[Any]:
    return loader.construct_sequence(node)


_Loader.add_constructor("tag:yaml.org,2002:python/tuple", _list)


def _read_yaml(text: str) -> Any:
    if len(text) > MAX_YAML or "<<" in text:  # merge keys can grow exponentially; no format has them
        return None
    try:
        return yaml.load(text, Loader=_Loader)
    except (yaml.YAMLError, ValueError, TypeError, RecursionError):
        return None


def read_pickle(path: Path) -> dict[str, Any]:
    """A torch checkpoint as plain containers of tensors; nothing in it is executed."""
    zipped = zipfile.is_zipfile(path)
    if zipped:
        _check_archive(path)
    else:
        _check_legacy(path)
    try:
        with torch.serialization.safe_globals([(Ignored, name) for name in INERT]):
            tree = _load(path, zipped)
    # a hostile file can make the reader fail in any way; none of them may reach the user as a traceback
    except Exception as error:
        raise UserError(f"{path.name} is not a readable checkpoint ({_short(error)}).", REFUSED) from error
    if not isinstance(tree, dict):
        raise UserError(f"{path.name} holds no checkpoint but a {type(tree).__name__}.", REFUSED)
    return tree


def _load(path: Path, zipped: bool) -> Any:
    # mapped, the optimizer's moments that many files carry are never read; torch maps by name only, and takes
    # what is called .safetensors for one
    if zipped and path.suffix != ".safetensors":
        return torch.load(path, map_location="cpu", weights_only=True, mmap=True)
    with path.open("rb") as handle:
        return torch.load(handle, map_location="cpu", weights_only=True)


def _short(error: BaseException) -> str:
    lines = str(error).strip().splitlines()
    return (lines[0] if lines else type(error).__name__)[:160].rstrip(".")


def _check_archive(path: Path) -> None:
    """Refuse archives that would unpack to more than they are, or whose records are damaged."""
    damaged = "Fetch it again."
    try:
        with zipfile.ZipFile(path) as archive:
            records = archive.infolist()
            size = path.stat().st_size
            packed = any(record.compress_type != zipfile.ZIP_STORED for record in records)
            if len(records) > MAX_RECORDS or packed or sum(record.file_size for record in records) > size:
                raise UserError(
                    f"{path.name} would unpack to more than it holds.", "It is no real checkpoint."
                )
            if any(r.filename.endswith(".pkl") and r.file_size > MAX_PROGRAM for r in records):
                raise UserError(
                    f"{path.name} has an oversized table of contents.", "It is no real checkpoint."
                )
            for record in records:
                with archive.open(record) as content:
                    if record.filename.endswith(".pkl"):
                        _check_program(io.BytesIO(content.read()), path.name)
                    while content.read(CHUNK):  # the last read compares the stored checksum
                        pass
    except (zipfile.BadZipFile, OSError, ValueError, NotImplementedError, RuntimeError, EOFError) as error:
        raise UserError(f"{path.name} is damaged: {_short(error)}.", damaged) from error


def _check_legacy(path: Path) -> None:
    """The old layout: five pickles in a row (marks, then the table of contents), then the raw numbers."""
    with path.open("rb") as handle:
        head = io.BytesIO(handle.read(MAX_PROGRAM))
    for _ in range(5):
        _check_program(head, path.name)


def _check_program(stream: io.BytesIO, where: str) -> None:
    """Look through a pickle without running it: every name it would import must be one that holds numbers."""
    strings: list[str] = []
    try:
        for opcode, argument, _ in pickletools.genops(stream):
            if opcode.name == "STACK_GLOBAL":
                name = " ".join(strings[-2:])
            elif opcode.name in ("GLOBAL", "INST"):
                name = str(argument)
            else:
                strings = [*strings[-1:], argument] if isinstance(argument, str) else strings
                continue
            dotted = name.replace(" ", ".")
            if ALLOWED.fullmatch(name) is None and dotted not in INERT:
                raise UserError(
                    f"{where} asks for code to be run ({dotted[:80]}), which di4c never does.", REFUSED
                )
    except (ValueError, IndexError, OverflowError, MemoryError, struct.error) as error:
        raise UserError(f"{where} is not a readable checkpoint ({_short(error)}).", REFUSED) from error


def tensors_of(tree: Any, where: str) -> dict[str, Tensor]:
    """The entries of a state dict that are tensors, checked to be what they seem."""
    if not isinstance(tree, dict):
        raise UserError(f"{where} holds no table of weights.", "Fetch it again.")
    found = {key: value for key, value in tree.items() if isinstance(key, str) and isinstance(value, Tensor)}
    for name, tensor in found.items():
        check_plain(tensor, name, where)
    return found


def check_plain(tensor: Any, name: str, where: str) -> None:
    """A dense tensor as large as it claims (an expanded one costs nothing until it is copied)."""
    plain = isinstance(tensor, Tensor) and tensor.layout == torch.strided and tensor.device.type == "cpu"
    if not plain or tensor.is_quantized:
        raise UserError(f"{where}: '{name}' is not a plain tensor.", "Fetch it again.")
    if tensor.numel() * tensor.element_size() > tensor.untyped_storage().nbytes():
        raise UserError(f"{where}: '{name}' claims more numbers than are stored.", "Fetch it again.")
