"""Arrays of any origin: `.npy` read piece by piece, `.npz` read by name, both checked by their headers first.

Nothing is memory-mapped: a file that is cut while it is read gives an error, where a mapped one would end the process.
"""

from __future__ import annotations

import os
import zipfile
from collections.abc import Callable
from dataclasses import dataclass
from math import prod
from pathlib import Path
from typing import Any, BinaryIO

import numpy as np

from di4c_cli.errors import Failure, UserError
from di4c_cli.foreign.regular import in_memory_limit, open_regular, size_text

NUMBERS = "biuf"
"""Kinds of dtypes: bool, signed, unsigned and float. Complex numbers, dates, objects and records are rejected."""
MAX_DIMENSIONS = 8
"""Images have four."""
MAX_RATIO = 100
"""Real images and features compress by less than 20 to 1; deflate reaches 1000 to 1 on zeros."""
FREE_BYTES = 2**28
"""An array up to this size may have any ratio, such as the labels of one class."""
WRITE_AGAIN = "Write it again with numpy."


@dataclass(frozen=True)
class ArrayHeader:
    """Type and shape that a file claims, and where its numbers begin."""

    dtype: np.dtype
    shape: tuple[int, ...]
    fortran: bool
    offset: int

    @property
    def size(self) -> int:
        """Bytes of the numbers."""
        return prod(self.shape) * self.dtype.itemsize

    def check_fits(self, where: str, limit: int) -> None:
        """Reject an array that is larger in memory than `limit` bytes."""
        if self.size > limit:
            problem = f"{where} takes {size_text(self.size)}, more than the {size_text(limit)} that di4c reads at once"
            raise UserError(f"{problem} on this machine.", "Name a smaller array.")


def _header(file: Any, where: str, kinds: str) -> ArrayHeader:
    try:
        version = np.lib.format.read_magic(file)
        read: Callable[..., Any] = np.lib.format.read_array_header_2_0
        if version == (1, 0):
            read = np.lib.format.read_array_header_1_0
        elif version not in ((2, 0), (3, 0)):
            raise ValueError(f"version {version} of the format is unknown")
        shape, fortran, dtype = read(file)
    except Exception as error:  # numpy parses the header as Python's literals: SyntaxError, MemoryError, …
        raise UserError(f"{where} is not a readable array file.", WRITE_AGAIN) from error
    if dtype.kind not in kinds or dtype.hasobject:
        raise UserError(f"{where} holds {dtype}, which di4c does not read.", WRITE_AGAIN)
    if len(shape) > MAX_DIMENSIONS or any(side < 0 for side in shape):
        raise UserError(f"{where} has the shape {shape}.", f"Use at most {MAX_DIMENSIONS} dimensions.")
    return ArrayHeader(dtype, tuple(map(int, shape)), bool(fortran) and len(shape) > 1, file.tell())


class ArrayOnDisk:
    """An array in a file, from which rows are read when they are asked for."""

    def __init__(self, path: Path, header: ArrayHeader) -> None:
        self.path, self.header = path, header
        self.shape, self.dtype, self.ndim = header.shape, header.dtype, len(header.shape)
        self._whole: np.ndarray | None = None
        if header.fortran:  # its rows are scattered
            header.check_fits(str(path), in_memory_limit())
            flat = self._numbers(0, prod(self.shape))
            self._whole = np.ascontiguousarray(flat.reshape(self.shape, order="F"))

    def __len__(self) -> int:
        return self.shape[0] if self.shape else 0

    def __getitem__(self, rows: slice) -> np.ndarray:
        """Rows start … stop - 1."""
        if self._whole is not None:
            return self._whole[rows]
        start, stop, _ = rows.indices(len(self))
        row = prod(self.shape[1:])
        return self._numbers(start * row, max(0, stop - start) * row).reshape(-1, *self.shape[1:])

    def flat(self) -> ArrayOnDisk | np.ndarray:
        """The same numbers in one dimension."""
        if self._whole is not None:
            return self._whole.reshape(-1)
        header = self.header
        return ArrayOnDisk(self.path, ArrayHeader(header.dtype, (prod(header.shape),), False, header.offset))

    def _numbers(self, first: int, count: int) -> np.ndarray:
        size = self.dtype.itemsize
        try:
            with open_regular(self.path) as file:
                file.seek(self.header.offset + first * size)
                content = file.read(count * size)
        except (OSError, UserError) as error:
            raise Failure(f"{self.path} cannot be read any more: {error}.", "Run the same command again.") from error
        if len(content) < count * size:
            raise Failure(f"{self.path} became shorter while it was read.", "Write it again.")
        return np.frombuffer(content, self.dtype)


def open_npy(path: Path) -> ArrayOnDisk:
    """A `.npy` file; one that is shorter than its header says is rejected."""
    with open_regular(path) as file:
        header, length = _header(file, str(path), NUMBERS), os.fstat(file.fileno()).st_size
    if header.offset + header.size > length:
        problem = f"{path} has {size_text(length)}, but its header promises {size_text(header.offset + header.size)}."
        raise UserError(problem, WRITE_AGAIN)
    return ArrayOnDisk(path, header)


def open_raw(path: Path, dtype: np.dtype) -> ArrayOnDisk:
    """A file of nothing but numbers of one type."""
    with open_regular(path) as file:
        size = os.fstat(file.fileno()).st_size
    if size % dtype.itemsize or not size:
        raise UserError(f"{path} does not hold whole {8 * dtype.itemsize}-bit ids.", "Write it again.")
    return ArrayOnDisk(path, ArrayHeader(dtype, (size // dtype.itemsize,), False, 0))


class ArrayArchive:
    """The arrays of an `.npz` file by name; each is read when it is asked for, after its sizes were checked."""

    def __init__(self, path: Path) -> None:
        self.path = path
        self._file: BinaryIO = open_regular(path)
        try:
            archive = zipfile.ZipFile(self._file)
        except Exception as error:  # zipfile has errors of its own and lets those of struct through
            self._file.close()
            raise UserError(f"{path} is not a readable .npz file.", WRITE_AGAIN) from error
        self._archive = archive
        self._members = {info.filename.removesuffix(".npy"): info for info in archive.infolist()}

    def __enter__(self) -> ArrayArchive:
        return self

    def __exit__(self, *_: object) -> None:
        self._archive.close()
        self._file.close()

    @property
    def names(self) -> list[str]:
        """The names of the arrays."""
        return list(self._members)

    def first(self, *names: str) -> str | None:
        """The first of these names that the file has."""
        return next((name for name in names if name in self._members), None)

    def read(self, name: str, kinds: str = NUMBERS, limit: int | None = None) -> np.ndarray:
        """One array of at most `limit` bytes (half of the machine's memory)."""
        info, where = self._members.get(name), f"The array '{name}' of {self.path}"
        if info is None:
            raise UserError(f"{self.path} has no array '{name}'.", WRITE_AGAIN)
        if info.compress_type not in (zipfile.ZIP_STORED, zipfile.ZIP_DEFLATED):
            raise UserError(f"{where} is compressed in a way that numpy does not write.", WRITE_AGAIN)
        try:
            with self._archive.open(info) as member:
                header = _header(member, where, kinds)
                header.check_fits(where, in_memory_limit() if limit is None else limit)
                # numbers that the archive does not hold, and a ratio that no real data has
                if header.offset + header.size > info.file_size:
                    raise UserError(f"{where} is cut off.", WRITE_AGAIN)
                if header.size > FREE_BYTES and header.size > MAX_RATIO * info.compress_size:
                    problem = f"{where} unpacks {size_text(info.compress_size)} to {size_text(header.size)}, more than"
                    raise UserError(f"{problem} {MAX_RATIO} to 1.", "Store it without compression.")
                content = member.read(header.size)
        except UserError:
            raise
        except Exception as error:  # damaged archives raise errors of zipfile, zlib, struct and RuntimeError
            raise UserError(f"{self.path} is not a readable .npz file.", WRITE_AGAIN) from error
        if len(content) < header.size:
            raise UserError(f"{where} is cut off.", WRITE_AGAIN)
        numbers = np.frombuffer(content, header.dtype)
        return numbers.reshape(header.shape, order="F" if header.fortran else "C")


def as_integers(array: np.ndarray, where: str) -> np.ndarray:
    """Integers that torch takes: in native byte order, signed unless they are bytes; none may wrap around."""
    if array.dtype.kind not in "ui":
        raise UserError(f"{where} are not integers but {array.dtype}.", "Store integers.")
    if array.dtype.itemsize == 1:
        return array
    if array.dtype.kind == "u" and array.size and int(array.max()) > np.iinfo(np.int64).max:
        raise UserError(f"{where} hold the integer {int(array.max())}, which has no meaning.", "Store smaller ones.")
    wide = array.dtype.kind == "u" and array.dtype.itemsize >= 4
    return array.astype(np.int64 if wide else f"i{max(4, array.dtype.itemsize)}")
