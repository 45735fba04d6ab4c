"""Regular files only: reading a pipe, a socket or a device might block or never end."""

from __future__ import annotations

import os
import stat
from pathlib import Path
from typing import BinaryIO

from di4c_cli.errors import UserError
from di4c_cli.memory import physical_memory

KINDS = {
    stat.S_IFDIR: "folder",
    stat.S_IFIFO: "pipe",
    stat.S_IFSOCK: "socket",
    stat.S_IFCHR: "device",
    stat.S_IFBLK: "device",
}
NAME_FILE = "Name a regular file."
MAX_RECORD_BYTES = 2**30
"""A step takes 400 bytes in metrics.jsonl: a record of two million steps."""


def in_memory_limit() -> int:
    """The largest object that a reader holds in memory: half of the machine's, because most are copied once."""
    return physical_memory() // 2


def is_regular(path: Path) -> bool:
    """Whether a path is a file or a link to one."""
    try:
        return stat.S_ISREG(path.stat().st_mode)
    except (OSError, ValueError):
        return False


def is_plain_name(name: object) -> bool:
    """Whether a name in a foreign file is that of a visible file beside it, and leads nowhere else."""
    return isinstance(name, str) and name == Path(name).name and name[:1] not in ("", ".") and "\0" not in name


def regular_file(path: Path) -> Path:
    """The path itself, if it is a regular file or a link to one; everything else is rejected without being opened."""
    try:
        mode = path.stat().st_mode
    except FileNotFoundError:
        raise UserError(f"There is no file {path}.", "Check the path.") from None
    except (OSError, ValueError) as error:  # a loop of links, a name that is too long or has a NUL inside
        raise UserError(f"{path} cannot be read: {getattr(error, 'strerror', error)}.", NAME_FILE) from error
    if not stat.S_ISREG(mode):
        raise UserError(f"{path} is a {KINDS.get(stat.S_IFMT(mode), 'special file')}, not a file.", NAME_FILE)
    return path


def open_regular(path: Path) -> BinaryIO:
    """A regular file opened for reading; a pipe that took its place after the check does not block either."""
    try:
        handle = os.open(regular_file(path), os.O_RDONLY | os.O_NONBLOCK | os.O_CLOEXEC)
    except OSError as error:
        raise UserError(f"{path} cannot be read: {error.strerror}.", NAME_FILE) from error
    if not stat.S_ISREG(os.fstat(handle).st_mode):
        os.close(handle)
        raise UserError(f"{path} is not a regular file.", NAME_FILE)
    return os.fdopen(handle, "rb")


def read_bytes(path: Path, limit: int, what: str = "file") -> bytes:
    """The whole content of at most `limit` bytes; the stated size is checked first, then what was read."""
    try:
        with open_regular(path) as handle:
            large = os.fstat(handle.fileno()).st_size > limit
            content = b"" if large else handle.read(limit + 1)
    except OSError as error:
        raise UserError(f"{path} cannot be read: {error.strerror}.", NAME_FILE) from error
    if large or len(content) > limit:
        raise UserError(f"{path} is larger than {size_text(limit)}, the limit for a {what}.", "Name another file.")
    return content


def size_text(size: int) -> str:
    """A number of bytes for a sentence."""
    for unit, name in ((2**30, "GB"), (2**20, "MB"), (2**10, "kB")):
        if size >= unit:
            return f"{size / unit:.3g} {name}" if size < 1000 * unit or name == "GB" else f"{size // unit} {name}"
    return f"{size} bytes"
