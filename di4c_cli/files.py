"""Atomic writes: a file or folder appears completely or not at all."""

from __future__ import annotations

import os
import shutil
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path


def sync(path: Path) -> None:
    """Flush a file's or folder's contents to the disk."""
    handle = os.open(path, os.O_RDONLY)
    try:
        os.fsync(handle)
    finally:
        os.close(handle)


def write_bytes(path: Path, content: bytes) -> None:
    """Write a temporary file beside the target, fsync it and rename it."""
    path.parent.mkdir(parents=True, exist_ok=True)
    part = path.with_name(f".{path.name}.{os.getpid()}.part")
    try:
        with part.open("wb") as handle:
            handle.write(content)
            handle.flush()
            os.fsync(handle.fileno())
        part.replace(path)
        sync(path.parent)
    finally:
        part.unlink(missing_ok=True)


def write_text(path: Path, content: str) -> None:
    """`write_bytes` of UTF-8 text."""
    write_bytes(path, content.encode())


@contextmanager
def new_folder(path: Path) -> Iterator[Path]:
    """A folder that gets its name only when its contents are complete; it replaces an older folder."""
    path = path.resolve()  # "." has no name, and a link stands for its target
    path.parent.mkdir(parents=True, exist_ok=True)
    part = path.with_name(f".{path.name}.{os.getpid()}.part")
    shutil.rmtree(part, ignore_errors=True)
    part.mkdir()
    try:
        yield part
        for file in part.rglob("*"):
            if file.is_file():
                sync(file)
        old = path.with_name(f".{path.name}.{os.getpid()}.old")
        if path.exists():
            path.rename(old)
        part.rename(path)
        sync(path.parent)
        shutil.rmtree(old, ignore_errors=True)
    finally:
        shutil.rmtree(part, ignore_errors=True)
