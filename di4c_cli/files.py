"""Atomic writes of files and folders, recovery after a kill, locks, and a full disk as one sentence.

A writer fills `.NAME.part` beside its target and holds a lock on it; the system releases the lock of a killed process,
so the next writer of the same name takes over what was left behind. Where the file system cannot exchange two folders,
the old one is `.NAME.old` for a moment; `recover` puts it back if the process was killed then.
"""

from __future__ import annotations

import ctypes
import errno
import fcntl
import io
import os
import shutil
from collections.abc import Callable, Iterator
from contextlib import contextmanager, suppress
from pathlib import Path
from typing import BinaryIO

from di4c_cli.errors import Di4cError, Failure, UserError

LOCK_FILE = ".lock"
MAX_NAME_BYTES = 255
MAX_WRITERS = 100
"""Processes that may write one file or folder at the same time; the last one wins."""
FULL_DISK_ERRNOS = (errno.ENOSPC, errno.EDQUOT, errno.EFBIG)
FULL_DISK_WORDS = (
    *("No space left", "os error 28", "os error 122", "os error 27", "File too large", "quota exceeded"),
    *("PytorchStreamWriter", "unexpected pos"),
)
"""The libraries that write files each report a full disk in their own words."""
TAKEN_ERRNOS = (errno.ENOTEMPTY, errno.EEXIST, errno.ENOTDIR)
AT_FDCWD, RENAME_EXCHANGE = -100, 2
"""Constants of Linux's renameat2."""


def sync(path: Path) -> None:
    """Flush a file's or folder's contents to the disk."""
    handle = os.open(path, os.O_RDONLY)
    try:
        os.fsync(handle)
    finally:
        os.close(handle)


def real_path(path: Path) -> Path:
    """The absolute path without links; a link that leads to itself stays, where `Path.resolve` raises."""
    return Path(os.path.realpath(path))


def output_path(path: Path) -> Path:
    """`real_path` of something to be written; no folder is ever created where a broken link points."""
    target = real_path(path)
    broken = any(os.path.islink(folder) and not os.path.exists(folder) for folder in path.parents)
    if broken or (os.path.islink(path) and not os.path.exists(target.parent)):
        raise UserError(f"{path} leads through a link to a folder that does not exist.", "Choose another name.")
    return target


def write_bytes(path: Path, content: bytes) -> None:
    """Write a temporary file beside the target, fsync it and rename it."""
    path = output_path(path)
    if path.exists() and not path.is_file():
        raise UserError(f"{path} is not a file.", "Choose another name.")
    with full_disk_explained(path):
        path.parent.mkdir(parents=True, exist_ok=True)
        with _claimed(path, folder=False) as part:
            with part.open("wb") as handle:
                handle.write(content)
                handle.flush()
                os.fsync(handle.fileno())
            part.replace(path)
            sync(path.parent)


def write_text(path: Path, content: str) -> None:
    """`write_bytes` of UTF-8 text."""
    write_bytes(path, content.encode())


def write_with(path: Path, save: Callable[[BinaryIO], object]) -> None:
    """`write_bytes` of what a library saves into a file: a picture or an array."""
    buffer = io.BytesIO()
    save(buffer)
    write_bytes(path, buffer.getvalue())


@contextmanager
def new_folder(path: Path) -> Iterator[Path]:
    """A folder that gets its name only when its contents are complete; it replaces an older folder."""
    path = output_path(path)  # "." has no name
    with full_disk_explained(path):
        path.parent.mkdir(parents=True, exist_ok=True)
        recover(path)
        with _claimed(path, folder=True) as part:
            for entry in part.iterdir():  # of a killed process
                remove(entry)
            yield part
            for file in part.rglob("*"):
                if file.is_file():
                    sync(file)
            try:
                os.rename(part, path)
            except OSError as error:
                if error.errno not in TAKEN_ERRNOS:
                    raise
                _swap(part, path)
            sync(path.parent)


def remove_folder(path: Path) -> None:
    """Delete a folder that must never be taken for a complete one when it is half deleted."""
    gone = _beside(path, ".gone.part")
    remove(gone)
    with suppress(FileNotFoundError):
        remove(path.rename(gone))


def remove(path: Path) -> None:
    """Delete a file, a link or a folder, as far as possible."""
    if path.is_dir() and not path.is_symlink():
        shutil.rmtree(path, ignore_errors=True)
    else:
        with suppress(OSError):
            path.unlink()


def is_leftover(name: str) -> bool:
    """Whether a file name is that of a lock or of what a killed process left behind."""
    return name == LOCK_FILE or (name.startswith(".") and name.endswith((".part", ".old")))


def recover(path: Path) -> None:
    """Put back a folder whose replacement was interrupted between two renames."""
    old = _beside(path, ".old")
    if path.exists() or not old.exists():
        return
    handle = _lock_if_free(old)
    if handle is not None:  # no living process is about to put the new folder there
        with suppress(OSError):
            old.rename(path)
        os.close(handle)


@contextmanager
def lock(folder: Path) -> Iterator[None]:
    """Allow one writer of a folder at a time; the system releases the lock of a killed process."""
    output_path(folder / LOCK_FILE)
    folder.mkdir(parents=True, exist_ok=True)
    path = folder / LOCK_FILE
    while True:
        _create(path, folder=False)
        handle = _lock_if_free(path)
        if handle is None and path.exists():
            raise UserError(f"Another di4c is writing to {folder}.", "Wait for it or choose another --out.")
        if handle is not None:
            break
    try:
        yield
    finally:
        with suppress(OSError):
            path.unlink(missing_ok=True)
        os.close(handle)


@contextmanager
def full_disk_explained(target: Path) -> Iterator[None]:
    """Report a full disk while `target` is written in one sentence; other errors pass."""
    try:
        yield
    except Di4cError:
        raise
    except Exception as error:  # safetensors, torch and numpy have no common class for it
        told = any(words in str(error) for words in FULL_DISK_WORDS)
        if not told and getattr(error, "errno", None) not in FULL_DISK_ERRNOS:
            raise
        raise Failure(
            f"The disk is full: {target.name} could not be written to {target.parent}; what was there is intact.",
            "Free space and run the same command again.",
        ) from error


def _beside(path: Path, ending: str) -> Path:
    """`.NAME` + ending; a name that would become too long is shortened."""
    kept = os.fsencode(path.name)[: MAX_NAME_BYTES - len(ending) - 8]
    return path.with_name(f".{os.fsdecode(kept)}{ending}")


@contextmanager
def _claimed(path: Path, folder: bool) -> Iterator[Path]:
    """A temporary path beside `path` that belongs to this process alone; what is left of it is removed afterwards."""
    part, handle = _claim(path, folder)
    try:
        yield part
    finally:
        if _is_at(handle, part):
            remove(part)
        os.close(handle)


def _claim(path: Path, folder: bool) -> tuple[Path, int]:
    """The first free temporary path, created and locked; further ones of killed processes are removed."""
    mine: tuple[Path, int] | None = None
    for number in range(MAX_WRITERS):
        part = _beside(path, f".{number}.part" if number else ".part")
        if mine is not None and not part.exists():
            return mine
        if mine is None:
            _create(part, folder)
        handle = _lock_if_free(part)
        if handle is None:
            continue
        if mine is None and part.is_dir() == folder:
            mine = part, handle
        else:
            remove(part)
            os.close(handle)
    raise Failure(f"{path} cannot be written: {MAX_WRITERS} others are writing it.", "Choose another name.")


def _create(path: Path, folder: bool) -> None:
    with suppress(FileExistsError, IsADirectoryError):
        if folder:
            path.mkdir()
        else:
            os.close(os.open(path, os.O_CREAT | os.O_WRONLY, 0o666))


def _lock_if_free(path: Path, wait: bool = False) -> int | None:
    """A descriptor that holds the lock of what is at `path` now; None if another process holds it or it is gone."""
    try:
        handle = os.open(path, os.O_RDONLY)
    except (FileNotFoundError, PermissionError):
        return None
    try:
        fcntl.flock(handle, fcntl.LOCK_EX if wait else fcntl.LOCK_EX | fcntl.LOCK_NB)
    except BlockingIOError:
        os.close(handle)
        return None
    except OSError:  # a file system without locks: two writers at once are not told apart there
        return handle
    if _is_at(handle, path):
        return handle
    os.close(handle)
    return None


def _is_at(handle: int, path: Path) -> bool:
    """Whether the open file or folder is the one that has this name now."""
    try:
        return os.path.samestat(os.fstat(handle), os.stat(path))
    except FileNotFoundError:
        return False


def _swap(part: Path, path: Path) -> None:
    """Put a complete folder in the place of an existing one, which is deleted."""
    while (handle := _lock_if_free(path, wait=True)) is None:
        if not path.exists():  # another writer has just moved it
            _create(path, folder=True)
    try:
        if not exchange(part, path):
            old = _beside(path, ".old")
            remove(old)
            path.rename(old)
            part.rename(path)
            part = old
        sync(path.parent)
        remove(part)  # the old one, while its lock keeps other writers away from it
    finally:
        os.close(handle)


def exchange(one: Path, other: Path) -> bool:
    """Exchange two names in one step; False where the system cannot."""
    function = getattr(ctypes.CDLL(None, use_errno=True), "renameat2", None)
    return (
        function is not None
        and function(AT_FDCWD, os.fsencode(one), AT_FDCWD, os.fsencode(other), ctypes.c_uint(RENAME_EXCHANGE)) == 0
    )
