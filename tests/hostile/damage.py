"""A case, and damaged copies of valid files for it."""

from __future__ import annotations

import os
import random
import shutil
from collections.abc import Callable
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from tests.hostile import bombs, tensors
from tests.hostile.mutations import mutate

SHORT = ["--iterations", "1", "--batch", "2"]
STOP_SECONDS = 8.0
"""Options may ask for hours of work: such a command is asked to stop, and must."""


@dataclass
class Case:
    """A command, what was done to its input, and what it may replace."""

    words: list[str]
    story: str
    stop_after: float | None = None
    prepare: Callable[[], Any] | None = None
    replaced: tuple[str, ...] = ()
    model: str = ""
    """A folder that the command writes, which must then hold a working model."""


Target = Callable[[Path, Path, random.Random], Case]


def copy(source: Path, target: Path) -> Path:
    """A copy that may be damaged."""
    target.parent.mkdir(parents=True, exist_ok=True)
    return Path(shutil.copytree(source, target) if source.is_dir() else shutil.copy(source, target))


def link(source: Path, target: Path) -> None:
    """The same files under another path, which is quicker than a copy; for cases that do not damage them."""
    target.parent.mkdir(parents=True, exist_ok=True)
    if source.is_dir():
        shutil.copytree(source, target, copy_function=os.link)
    else:
        os.link(source, target)


def files_of(path: Path, *suffixes: str) -> list[Path]:
    """Ordinary files at or below a path, but none that a mutation has made huge."""
    found = sorted(path.rglob("*")) if path.is_dir() and not path.is_symlink() else [path]
    plain = [p for p in found if p.is_file() and not p.is_symlink() and p.stat().st_size < 2**26]
    return [p for p in plain if not suffixes or p.suffix in suffixes]


def damage(path: Path, rng: random.Random, *preferred: str) -> str:
    """Damage one or two files at a path; those with `preferred` endings three times of four."""
    story = []
    for _ in range(rng.choice([1, 1, 1, 2])):
        some = files_of(path, *preferred) if preferred and rng.random() < 0.75 else []
        found = some or files_of(path)
        if found:
            one = rng.choice(found)
            story.append(damage_file(one, rng))
    return ", ".join(story)


def damage_file(path: Path, rng: random.Random) -> str:
    """One change of a file, as it fits its format."""
    way = rng.random()
    if path.suffix in tensors.SUFFIXES and way < 0.5:
        with suppress(Exception):  # it is damaged already
            return tensors.change(path, rng)
    return bombs.bomb(path, rng) if way > 0.88 else mutate(path, rng)
