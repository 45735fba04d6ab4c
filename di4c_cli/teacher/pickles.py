"""Reads untrusted torch checkpoints as data.

Pickles are read by torch's weights-only reader, which builds tensors and plain containers and calls nothing
else. Every limit is checked before anything is read into memory; every failure becomes one sentence.
"""

from __future__ import annotations

import io
import pickletools
import re
import struct
import zipfile
from _compat_pickle import IMPORT_MAPPING, NAME_MAPPING
from collections import Counter
from pathlib import Path
from threading import Lock
from typing import Any

import torch
from torch import Tensor

from di4c_cli.errors import UserError

MAX_RECORDS = 100_000
MAX_PROGRAM_BYTES = 16 * 2**20
MAX_LOOKUPS = 20_000_000
"""Objects times names in a file: torch goes through the names for each object."""
OBJECTS = "objects"
_LOADING = Lock()
CHUNK_BYTES = 2**22
ASK_PUBLISHER = "Ask its publisher for a safetensors file or fetch it again."
SAVE_WEIGHTS = (
    "Ask its publisher for a safetensors file. Of your own file, save the weights alone: "
    "torch.save({'state_dict': …, 'ema': …}, …) with the tensors of the same keys."
)


class LibraryObject:
    """Stands for a class, function or object of a library in a checkpoint: takes every argument, keeps none."""

    def __new__(cls, *_: Any) -> Any:
        # torch puts items into plain dictionaries only
        return {} if cls.__name__.endswith((".AttributeDict", ".defaultdict")) else object.__new__(cls)

    def __setstate__(self, _: Any) -> None:
        """The state of the object, which is dropped."""


INERT_GLOBALS = re.compile(
    r"(hydra|huggingface_hub|omegaconf|tokenizers|transformers|(pytorch_)?lightning(_fabric|_utilities)?)(\.\w+)* \w+"
    r"|(typing|pathlib(\._local)?) \w+|argparse Namespace|collections defaultdict|_?operator getitem|types GenericAlias"
    r"|(builtins|__builtin__) (bool|bytes|dict|float|frozenset|int|list|long|object|str|tuple|type|unicode)"
)
"""Read as `LibraryObject`, never imported or called: Lightning files hold configurations, tokenizers and types."""

ALLOWED_GLOBALS = re.compile(
    r"collections (OrderedDict|Counter)|(builtins|__builtin__) (set|complex)|_codecs encode"
    r"|torch\._utils _rebuild_(tensor|tensor_v2|tensor_v3|parameter|parameter_with_state)"
    r"|torch\._tensor _rebuild_from_type_v2|torch\.nn\.parameter Parameter|torch\.serialization _get_layout"
    r"|torch(\.storage)? \w*Storage|torch (Size|device|b?float\d*|half|double|u?int\d+|long|short|char|bool)"
)
"""Everything a checkpoint needs. Torch allows more, such as a `bytearray` of 10^12 bytes."""


def read_pickle(path: Path) -> dict[str, Any]:
    """A torch checkpoint as plain containers of tensors; nothing in it is executed."""
    zipped, found = _is_archive(path), Counter[str]()
    (_check_archive if zipped else _check_legacy)(path, found)
    try:
        with _LOADING:
            tree = _load(path, zipped, found.keys() - {OBJECTS})
    # a hostile file can make the reader raise anything, and no traceback may reach the user
    except Exception as error:
        problem = f"{path.name} is not a readable checkpoint ({_short(error)})."
        raise UserError(problem, ASK_PUBLISHER) from error
    if not isinstance(tree, dict):
        raise UserError(f"{path.name} holds no checkpoint but a {type(tree).__name__}.", ASK_PUBLISHER)
    return {key: value for key, value in tree.items() if isinstance(key, str)}


def _load(path: Path, zipped: bool, inert: set[str]) -> Any:
    """Have torch read these names as `LibraryObject`, and none that another package has declared safe."""
    others = torch.serialization.get_safe_globals()
    torch.serialization.clear_safe_globals()
    try:
        with torch.serialization.safe_globals([(type(name, (LibraryObject,), {}), name) for name in inert]):
            # With mmap the optimizer state in many files is never read. torch maps only named files, and it takes a
            # file called .safetensors for safetensors.
            if zipped and path.suffix != ".safetensors":
                return torch.load(path, map_location="cpu", weights_only=True, mmap=True)
            with path.open("rb") as handle:
                return torch.load(handle, map_location="cpu", weights_only=True)
    finally:
        torch.serialization.add_safe_globals(others)


def _short(error: BaseException) -> str:
    lines = str(error).strip().splitlines()
    return (lines[0] if lines else type(error).__name__)[:160].rstrip(".")


def _is_archive(path: Path) -> bool:
    try:
        return zipfile.is_zipfile(path)
    except zipfile.BadZipFile:  # an archive of several disks
        return True


def _check_archive(path: Path, found: Counter[str]) -> None:
    """Reject archives that would unpack to more than their size, and damaged records."""
    try:
        with zipfile.ZipFile(path) as archive:
            records = archive.infolist()
            size = path.stat().st_size
            packed = any(record.compress_type != zipfile.ZIP_STORED for record in records)
            if len(records) > MAX_RECORDS or packed or sum(record.file_size for record in records) > size:
                raise UserError(f"{path.name} would unpack to more than it holds.", ASK_PUBLISHER)
            if any(r.filename.endswith(".pkl") and r.file_size > MAX_PROGRAM_BYTES for r in records):
                raise UserError(f"{path.name} has an oversized table of contents.", ASK_PUBLISHER)
            for record in records:
                with archive.open(record) as content:
                    if record.filename.endswith(".pkl"):
                        _check_program(io.BytesIO(content.read()), path.name, found)
                    while content.read(CHUNK_BYTES):  # the last read compares the stored checksum
                        pass
    except (zipfile.BadZipFile, OSError, ValueError, NotImplementedError, RuntimeError, EOFError) as error:
        raise UserError(f"{path.name} is damaged: {_short(error)}.", "Fetch it again.") from error


def _check_legacy(path: Path, found: Counter[str]) -> None:
    """Check the old layout: five pickles (marks, then the table of contents), then the raw tensors."""
    with path.open("rb") as handle:
        head = io.BytesIO(handle.read(MAX_PROGRAM_BYTES))
    for _ in range(5):
        _check_program(head, path.name, found)


def _check_program(stream: io.BytesIO, where: str, found: Counter[str]) -> None:
    """Scan a pickle without running it: it may name only `ALLOWED_GLOBALS` and `INERT_GLOBALS`, which are counted."""
    strings: list[str] = []
    try:
        for opcode, argument, _ in pickletools.genops(stream):
            found[OBJECTS] += opcode.name in ("GLOBAL", "REDUCE", "NEWOBJ", "BUILD")
            if opcode.name == "STACK_GLOBAL":
                name = " ".join(strings[-2:])
            elif opcode.name in ("GLOBAL", "INST"):
                name = str(argument)
            else:
                strings = [*strings[-1:], argument] if isinstance(argument, str) else strings
                continue
            if INERT_GLOBALS.fullmatch(name) is not None:
                module, _, last = name.partition(" ")
                found[".".join(NAME_MAPPING.get((module, last), (IMPORT_MAPPING.get(module, module), last)))] += 1
            elif ALLOWED_GLOBALS.fullmatch(name) is None:
                problem = f"{where} asks for code to be run ({name.replace(' ', '.')[:80]}), which di4c never does."
                raise UserError(problem, SAVE_WEIGHTS)
    except (ValueError, IndexError, OverflowError, MemoryError, struct.error) as error:
        raise UserError(f"{where} is not a readable checkpoint ({_short(error)}).", ASK_PUBLISHER) from error
    if len(found) > 1 and found[OBJECTS] * (20 + len(found)) > MAX_LOOKUPS:
        raise UserError(f"{where} has an oversized table of contents.", ASK_PUBLISHER)


def tensors_of(tree: Any, where: str) -> dict[str, Tensor]:
    """The tensors of a state dict, checked by `check_plain`."""
    if not isinstance(tree, dict):
        raise UserError(f"{where} holds no table of weights.", "Fetch it again.")
    kinds = (Tensor, LibraryObject)  # the latter is no plain tensor
    found: Any = {key: value for key, value in tree.items() if isinstance(key, str) and isinstance(value, kinds)}
    for name, tensor in found.items():
        check_plain(tensor, name, where)
    return dict(found)


def check_plain(tensor: Any, name: str, where: str) -> None:
    """Reject all but dense tensors as large as they claim (an expanded tensor costs memory only when copied)."""
    plain = isinstance(tensor, Tensor) and tensor.layout == torch.strided and tensor.device.type == "cpu"
    if not plain or tensor.is_quantized:
        raise UserError(f"{where}: '{name}' is not a plain tensor.", "Fetch it again.")
    if tensor.numel() * tensor.element_size() > tensor.untyped_storage().nbytes():
        raise UserError(f"{where}: '{name}' claims more values than are stored.", "Fetch it again.")


def averaged(shadow: Any, names: list[str], path: Path) -> dict[str, Tensor]:
    """EMA weights, which are stored as a list in the order of the parameters, under the parameters' names."""
    if not isinstance(shadow, list) or len(shadow) != len(names):
        hint = "Use `di4c convert` with --weights live and name what it writes."
        raise UserError(f"{path.name} holds no complete EMA.", hint)
    for name, tensor in zip(names, shadow):
        check_plain(tensor, name, path.name)
    return dict(zip(names, shadow))
