"""Checkpoint formats, told apart by content; each has `NAME`, `detect(source)`, `read(source, options)`."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from di4c_cli.errors import UserError
from di4c_cli.teacher.bundle import TokenizerOnly
from di4c_cli.teacher.formats import maskgit, own, tauldr, vqgan
from di4c_cli.teacher.formats.dit import MDLM, SDTT, SdttStudent
from di4c_cli.teacher.model_files import ModelFiles

FORMATS: tuple[Any, ...] = (own, SDTT, MDLM, SdttStudent(), maskgit, tauldr)
"""The order of detection: formats that need no checkpoint to be opened come first."""


def find(source: ModelFiles, extra: Callable[[], tuple[Any, ...]] = tuple) -> Any:
    """The format of a model; `extra` gives those of installed packages, which are tried last."""
    for candidates in (lambda: FORMATS, extra):
        for candidate in candidates():
            if candidate.detect(source):
                return candidate
    if vqgan.detect(source):
        hint = "Use `di4c convert` on a MaskGIT transformer with --vqgan."
        raise TokenizerOnly(f"{source.name} is an image tokenizer, not a teacher.", hint)
    names = ", ".join(path.name for path in source.files[:4]) or "nothing"
    problem = f"{source.name} holds no config.json and no checkpoint of a known format, but {names}."
    raise UserError(problem, f"Known formats: {', '.join(known.NAME for known in FORMATS)}.")


def recipe_by_config(source: ModelFiles) -> str | None:
    """The recipe for a model whose configuration tells its format; None where the weights are needed too."""
    if own.detect(source):
        return own.recipe(source)
    return next((known.RECIPE for known in (SDTT, MDLM) if source.tree(known.is_config)), None)
