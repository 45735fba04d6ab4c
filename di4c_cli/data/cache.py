"""Where encoded data is kept between runs: `$DI4C_CACHE`, else `di4c/` in the user's cache folder."""

from __future__ import annotations

import fcntl
import hashlib
import io
import json
import os
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import numpy as np

from di4c_cli import files


def root() -> Path:
    """The cache folder; nothing is created by asking."""
    if "DI4C_CACHE" in os.environ:
        return Path(os.environ["DI4C_CACHE"])
    return Path(os.environ.get("XDG_CACHE_HOME") or Path.home() / ".cache") / "di4c"


def entry(kind: str, key: dict[str, Any]) -> Path:
    """The folder of one encoded source; `key` is everything its contents depend on."""
    text = json.dumps(key, sort_keys=True)
    return root() / kind / hashlib.sha256(text.encode()).hexdigest()[:24]


def stamp(paths: list[Path]) -> list[list[Any]]:
    """Files as part of a key: a changed file is another file."""
    return [[str(path.resolve()), path.stat().st_size, path.stat().st_mtime_ns] for path in paths]


@contextmanager
def building(folder: Path) -> Iterator[None]:
    """One builder at a time; the others wait and then find the work done. Freed when a process dies."""
    folder.parent.mkdir(parents=True, exist_ok=True)
    with (folder.parent / f".{folder.name}.lock").open("w") as handle:
        fcntl.flock(handle, fcntl.LOCK_EX)
        yield


def write_array(path: Path, array: np.ndarray) -> None:
    """An .npy file, whole or not at all."""
    buffer = io.BytesIO()
    np.save(buffer, array)
    files.write_bytes(path, buffer.getvalue())
