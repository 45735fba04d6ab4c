"""The crash file: what a bug report needs and nothing private. Imports the standard library only."""

from __future__ import annotations

import getpass
import os
import platform
import re
import sys
import sysconfig
import tempfile
import time
import traceback
from collections.abc import Iterator
from contextlib import suppress
from importlib import metadata
from pathlib import Path

from di4c_cli import __version__
from di4c_cli.errors import first_line

PACKAGES = ("torch", "numpy", "accelerate", "huggingface-hub", "pydantic", "rich", "safetensors", "tokenizers", "typer")
MAX_FRAMES = 60
MAX_CAUSES = 5
PRIVATE = re.compile(r"'[^']*'?|\"[^\"]*\"?|`[^`]*`?|\S*[/\\@]\S*|\bhf_\w+|\S{40,}")
"""Parts of a message that may be a user's: quoted values, paths, addresses, tokens."""
WORD = re.compile(r"[^\s'\"`/\\=,:@]+")


def write_crash_file(error: BaseException) -> str | None:
    """Write a description of the error to the temporary folder; its path, or None if that failed."""
    try:
        stamp = time.strftime("%Y%m%d-%H%M%S")
        number, path = tempfile.mkstemp(prefix=f"di4c-crash-{stamp}-", suffix=".txt")
        with open(number, "w", encoding="utf-8", errors="backslashreplace") as file:
            file.write("\n".join(describe(error)) + "\n")
    except Exception:  # the sentence about the error itself must still be printed
        return None
    return path


def describe(error: BaseException) -> Iterator[str]:
    """The lines of the file: versions, the command without values, then every error with its call stack."""
    yield "di4c crash report: paths, values of options and the environment are left out."
    yield f"di4c {__version__}, Python {platform.python_version()}, {platform.system()} {platform.machine()}"
    yield ", ".join(_versions())
    yield f"command: {' '.join(_command(sys.argv[1:]))}"
    private = _private_words()
    current: BaseException | None = error
    for _ in range(MAX_CAUSES):
        if current is None:
            break
        yield ""
        frames = traceback.extract_tb(current.__traceback__, limit=None)
        if len(frames) > MAX_FRAMES:
            frames = traceback.StackSummary.from_list([*frames[:10], *frames[10 - MAX_FRAMES :]])
        yield from (f"  {_module(frame.filename)}:{frame.lineno} in {frame.name}" for frame in frames)
        yield redact(first_line(current), private)
        current = current.__cause__ or current.__context__


def redact(message: str, private: set[str]) -> str:
    """The message without quoted values, paths, tokens, and words of the command line, the user and the machine."""
    kept = PRIVATE.sub("<…>", message)
    return WORD.sub(lambda found: "<…>" if found[0].strip(".()[]{};!?").lower() in private else found[0], kept)


def _command(words: list[str]) -> Iterator[str]:
    """The command and the names of its options; a value, which may be private, is shown as `…`."""
    for place, word in enumerate(words):
        if re.fullmatch(r"--?[a-z][a-z-]*", word):
            yield word
        elif re.fullmatch(r"--[a-z-]+=.*", word, re.DOTALL):
            yield word.partition("=")[0] + "=…"
        else:
            yield word if place == 0 and (Path(__file__).parent / f"{word.replace('-', '_')}.py").is_file() else "…"


def _private_words() -> set[str]:
    """Words of argument values, of the environment's values, of the home folder and of the machine's name."""
    values = [*sys.argv[1:], *os.environ.values(), os.path.expanduser("~"), platform.node()]
    with suppress(Exception):  # no user of that number, no working directory
        values.append(getpass.getuser())
        values.append(os.getcwd())
    words = {word.strip(".()[]{};!?").lower() for value in values for word in WORD.findall(value)}
    return {word for word in words if len(word) > 2 and not word.isdecimal()}


def _versions() -> Iterator[str]:
    for name in PACKAGES:
        with suppress(metadata.PackageNotFoundError):
            yield f"{name} {metadata.version(name)}"


def _module(filename: str) -> str:
    """The path below the folder of this package, of other packages or of Python; elsewhere the file's name alone."""
    paths = sysconfig.get_paths()
    for root in (str(Path(__file__).parents[2]), paths["purelib"], paths["platlib"], paths["stdlib"]):
        if filename.startswith(root + os.sep):
            return filename[len(root) + 1 :].replace(os.sep, "/")
    return os.path.basename(filename)
