"""The cache of encoded data: `$DI4C_CACHE`, else `di4c/` in the user's cache folder."""

from __future__ import annotations

import errno
import fcntl
import hashlib
import io
import json
import os
import zlib
from collections.abc import Iterable, Iterator
from contextlib import contextmanager, suppress
from pathlib import Path
from threading import Lock
from typing import Any, BinaryIO

import numpy as np

from di4c_cli import files
from di4c_cli.errors import Failure, UserError
from di4c_cli.foreign.arrays import ArrayOnDisk, open_npy
from di4c_cli.foreign.regular import read_bytes, regular_file

SET_CACHE = "Set DI4C_CACHE to a folder that can be written."
CHECKSUM_BYTES = 4
MAX_SHARD_BYTES = 2**30
"""A shard of 1024 texts of 2^18 ids has 1 GB; usual ones have a few megabytes."""
ROWS_PER_READ = 2**13
WRITE_ERRORS = (errno.EACCES, errno.EPERM, errno.EROFS, errno.ENOENT, errno.ENOTDIR)


def root() -> Path:
    """The cache folder; this call creates nothing."""
    if "DI4C_CACHE" in os.environ:
        return Path(os.environ["DI4C_CACHE"])
    if os.environ.get("XDG_CACHE_HOME"):
        return Path(os.environ["XDG_CACHE_HOME"]) / "di4c"
    try:
        return Path.home() / ".cache" / "di4c"
    except RuntimeError:  # accounts in containers may have no home
        raise Failure("There is no home directory to keep encoded data in.", SET_CACHE) from None


@contextmanager
def writable() -> Iterator[None]:
    """Turn write errors of the cache folder into one sentence."""
    try:
        yield
    except OSError as error:
        if error.errno not in WRITE_ERRORS:
            raise
        problem = f"The cache folder {root()} cannot be written ({error.strerror})."
        raise Failure(problem, SET_CACHE) from error


def entry(kind: str, key: dict[str, Any]) -> Path:
    """The folder of one encoded source; `key` is everything its contents depend on."""
    text = json.dumps(key, sort_keys=True)
    return root() / kind / hashlib.sha256(text.encode()).hexdigest()[:24]


def stamp(paths: list[Path]) -> list[list[Any]]:
    """Files as part of a key: path, size and time of the last change."""
    facts = [(path, regular_file(path).stat()) for path in paths]
    return [[str(files.real_path(path)), fact.st_size, fact.st_mtime_ns] for path, fact in facts]


@contextmanager
def building(folder: Path) -> Iterator[None]:
    """A lock for building an entry: other processes wait. It is released when its process dies."""
    lock = folder.parent / f".{folder.name}.lock"
    with writable():
        folder.parent.mkdir(parents=True, exist_ok=True)
        lock.touch()
    with lock.open("w") as handle:
        fcntl.flock(handle, fcntl.LOCK_EX)
        yield


def write_array(path: Path, array: np.ndarray) -> None:
    """Write an .npy file completely or not at all; a checksum follows its numbers."""
    buffer = io.BytesIO()
    np.save(buffer, array)
    content = buffer.getvalue()
    files.write_bytes(path, content + checksum(content))


def open_array(path: Path) -> ArrayOnDisk | None:
    """An array that `write_array` wrote; None if it is missing, cut or altered."""
    try:
        content = read_bytes(path, MAX_SHARD_BYTES)
        return open_npy(path) if checksum(content[:-CHECKSUM_BYTES]) == content[-CHECKSUM_BYTES:] else None
    except UserError:
        return None


class Records:
    """Rows of `length` integers by number, appended to one file as they are made, each with a checksum.

    Several threads and processes may append. A row that is cut or altered counts as missing.
    """

    def __init__(self, path: Path, length: int, dtype: type[np.unsignedinteger[Any]]) -> None:
        self.path, self.row = path, np.dtype([("number", "<i8"), ("values", dtype, length), ("check", "S4")])
        self._place: dict[int, int] = {}
        self._known = 0
        self._lock = Lock()

    def find(self, numbers: Iterable[int]) -> dict[int, np.ndarray]:
        """Those of these rows that the file holds."""
        wanted, found = set(numbers), {}
        with self._lock, suppress(FileNotFoundError), self.path.open("rb") as file:
            if not wanted <= self._place.keys():
                self._look(file)
            for number in wanted & self._place.keys():
                file.seek(self._place[number] * self.row.itemsize)
                content = file.read(self.row.itemsize)
                whole = checksum(content[:-CHECKSUM_BYTES]) == content[-CHECKSUM_BYTES:]
                row = np.frombuffer(content, self.row)[0] if whole else None
                if row is not None and row["number"] == number:
                    found[number] = row["values"]
                else:
                    del self._place[number]
        return found

    def add(self, rows: dict[int, np.ndarray]) -> None:
        """Append rows."""
        table = np.zeros(len(rows), self.row)
        table["number"], table["values"] = list(rows), list(rows.values())
        table["check"] = [checksum(row.tobytes()[:-CHECKSUM_BYTES]) for row in table]
        with building(self.path), writable(), files.full_disk_explained(self.path), self.path.open("ab") as file:
            file.truncate(file.tell() // self.row.itemsize * self.row.itemsize)  # a killed process may leave a part
            file.write(table.tobytes())

    def _look(self, file: BinaryIO) -> None:
        """Learn the places of rows that were appended since the last look, or of all rows of another file."""
        if os.fstat(file.fileno()).st_size < self._known * self.row.itemsize:
            self._place, self._known = {}, 0
        file.seek(self._known * self.row.itemsize)
        while rows := len(part := file.read(ROWS_PER_READ * self.row.itemsize)) // self.row.itemsize:
            numbers = np.frombuffer(part, self.row, rows)["number"].tolist()
            self._place.update(zip(numbers, range(self._known, self._known + rows), strict=True))
            self._known += rows


def checksum(content: bytes, before: bytes = bytes(4)) -> bytes:
    """CRC-32, which tells damage and no forgery; of content in pieces, with the checksum of the pieces before."""
    return zlib.crc32(content, int.from_bytes(before, "little")).to_bytes(CHECKSUM_BYTES, "little")
