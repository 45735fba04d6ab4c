"""The toy tasks that ship inside the package: paths of their files and their names. See README.md in this folder."""

from __future__ import annotations

import re
import warnings
from pathlib import Path

from di4c_cli.errors import NameWarning

ROOT = Path(__file__).parent
DEFAULT = "fashion"
RENAMED = {"tiny-digits": "digits", "tiny-pixels": "pixels", "tiny-vq": "fashion", "tiny-text": "words"}
"""Names of version 0.1 and the present ones."""
OLD_NAME = re.compile(rf"((?:[\w-]+/)?)({'|'.join(RENAMED)})(-student|-frontier)?(@.*)?")
OLD_STEPS_SAVED, STEPS_SAVED = "tiny-speedup", "steps-saved"


def current_name(name: str) -> str:
    """The present name of a task, teacher, student, recipe or protocol: `di4c/tiny-vq` is `di4c/fashion`."""
    if name == OLD_STEPS_SAVED:
        return STEPS_SAVED
    found = OLD_NAME.fullmatch(name) if isinstance(name, str) else None
    return name if found is None else f"{found[1]}{RENAMED[found[2]]}{found[3] or ''}{found[4] or ''}"


def ask_name(name: str, now: str = "") -> str:
    """As `current_name`, for a name that the user gave: a warning tells the new one, or `now`."""
    now = now or current_name(name)
    if now != name:
        warnings.warn(f"{name} is now called {now}.", NameWarning, stacklevel=1)
    return now


def data(name: str) -> Path:
    """A data file, e.g. `digits.npz`."""
    return ROOT / "data" / name


def asset(name: str) -> Path:
    """A shared file: tokenizer, VQGAN or classifier."""
    return ROOT / "assets" / name


def model(task: str, kind: str) -> Path:
    """The folder of a task's `teacher` or `student`."""
    return ROOT / task / kind
