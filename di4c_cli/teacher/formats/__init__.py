"""Checkpoint formats, told apart by content; each has `NAME`, `detect(source)`, `read(source, options)`."""

from __future__ import annotations

from collections.abc import Callable
from types import ModuleType

from di4c_cli.errors import UserError
from di4c_cli.teacher.formats import maskgit, mdlm, own, sdtt, sdtt_student, tauldr, vqgan
from di4c_cli.teacher.options import TokenizerOnly
from di4c_cli.teacher.source import Source

FORMATS: tuple[ModuleType, ...] = (own, sdtt, mdlm, sdtt_student, maskgit, tauldr)
"""In this order: those that need no checkpoint to be opened come first."""


def find(source: Source, extra: Callable[[], tuple[ModuleType, ...]] = tuple) -> ModuleType:
    """The format of a source; `extra` gives those of installed packages, asked when none of ours fits."""
    for candidates in (lambda: FORMATS, extra):
        for candidate in candidates():
            if candidate.detect(source):
                return candidate
    if vqgan.detect(source):
        raise TokenizerOnly(
            f"{source.name} is an image tokenizer, not a teacher.",
            "Use `di4c convert` on a MaskGIT transformer with --vqgan.",
        )
    names = ", ".join(path.name for path in source.files[:4]) or "nothing"
    raise UserError(
        f"{source.name} holds no config.json and no checkpoint of a format di4c knows, but {names}.",
        f"Known formats: {', '.join(module.NAME for module in FORMATS)}.",
    )
