"""Every option of every command × a grammar of values, from the tree of commands itself."""

from __future__ import annotations

import os
import random
import stat
from collections.abc import Iterator
from dataclasses import dataclass
from functools import cache
from pathlib import Path
from typing import Any

import typer

from di4c_cli.cli.app import app
from di4c_cli.methods import METHODS
from tests.hostile.mutations import CONTROLS, MARKUP
from tests.hostile.option_values import NUMBERS, PATHS, TEXTS, WORDS, YAMLS
from tests.hostile.schema_values import settings

BASES: dict[str, list[list[str]]] = {
    "sample": [
        ["--teacher", "in/digits", "-n", "1", "--steps", "1"],
        ["--teacher", "in/text", "-n", "2", "--steps", "2"],
        [],
    ],
    "eval": [
        ["--teacher", "in/digits", "--steps", "1", "-n", "3", "--out", "out/e"],
        ["--samples", "in/data/digits.npz", "-n", "4"],
        ["--samples", "in/data/texts.txt", "--judge", "in/judge", "--reference", "in/data/texts.jsonl", "-n", "3"],
    ],
    "distill": [
        [*("--teacher", "in/digits", "--recipe", recipe, "--out", "out/r", "--iterations", "1", "--batch", "2"), *more]
        for recipe, more in (
            ("di4c/digits", ["--dry-run", "--latents", "2"]),
            ("di4c/digits", ["--latents", "2"]),
            ("di4c/digits", ["--latents", "2", "--set", "training.adapter=lora"]),
            ("moment_matching/digits", []),
            ("sdtt/digits", ["--rounds", "1"]),
            ("digits", []),
        )
    ],
    "sweep": [["in/sweep.yaml", "--teacher", "in/digits", "--iterations", "1", "--samples", "2", "--out", "out/s"]],
    "pretrain": [["--recipe", "pretrain/digits", "--iterations", "1", "--out", "out/p"]],
    "push": [["in/digits", "me/model"]],
    "report": [["in/run", "--out", "out/page.html"]],
    "compare": [["in/evaluation", "in/evaluation"]],
    "bench-latency": [
        ["--teacher", "in/digits", "--steps", "1", "--batch-size", "1", "--warmup", "1", "--out", "out/l.png"]
    ],
    "convert": [
        ["in/sdtt", "out/m"],
        ["in/digits", "out/m", "--force"],
        ["in/llada", "out/m"],
        ["in/adapter", "out/m", "--base", "digits"],
    ],
    "teachers": [[], ["words"]],
    "recipes show": [["digits"]],
}

LINK, LINKED = "special/\udcff", "in/digits"
"""A link, whose name is no text, to a model."""


@dataclass(frozen=True)
class Parameter:
    """An option or argument of a command."""

    command: str
    name: str
    kind: str
    flag: bool
    position: int | None


def parameters() -> list[Parameter]:
    """All of them."""
    return list(_walk(typer.main.get_command(app), []))


def _walk(command: Any, path: list[str]) -> Iterator[Parameter]:
    for name in getattr(command, "commands", {}):
        yield from _walk(command.get_command(None, name), [*path, name])
    position = 0
    for one in command.params:
        if one.name in ("help", "install_completion", "show_completion"):  # Typer's own, which change a shell's files
            continue
        argument = one.param_type_name == "argument"
        annotation = str(one.type_descriptor.annotation)
        kind = next((kind for kind in ("int", "float", "Path", "str", "bool") if kind in annotation), "str")
        name = one.name if argument else max(one.opts, key=len)
        yield Parameter(
            " ".join(path), name, kind, bool(getattr(one, "is_flag", False)), position if argument else None
        )
        position += argument


def values(parameter: Parameter) -> list[str]:
    """Every value of the grammar that is given to a parameter; numbers and paths also where texts are expected."""
    if parameter.flag:
        return [""]
    if parameter.kind in ("int", "float"):
        return [*NUMBERS, "x", CONTROLS, MARKUP, "in", "x" * 300]
    if parameter.kind == "Path":
        return [*PATHS, *TEXTS]
    if parameter.name == "--set":
        return [*TEXTS, *_settings()]
    if parameter.name == "--model":
        return [*TEXTS, *(f"{row}={path}" for row in ("row", "", MARKUP, CONTROLS) for path in PATHS)]
    return [*TEXTS, *WORDS, *PATHS, *NUMBERS[:20]]


@cache
def _settings() -> list[str]:
    """Every key of the recipes, and two that none has, with odd values and those at its limits."""
    found: dict[str, list[Any]] = {"": [], "nothing.at.all": []}
    for method in METHODS:
        found |= settings("distill", method)
    odd = [*NUMBERS[:24], *TEXTS[:9], *WORDS[:3], *YAMLS]
    return [f"{key}={value}" for key, limits in found.items() for value in (*odd, *limits)]


def grid() -> list[tuple[Parameter, str]]:
    """Every parameter with every value."""
    return [(one, value) for one in parameters() for value in values(one)]


def line(given: list[tuple[Parameter, str]], rng: random.Random) -> list[str]:
    """A command line that works, with these parameters of one command changed."""
    command = given[0][0].command
    words = list(rng.choice(BASES.get(command, [[]])))
    for parameter, value in given:
        if parameter.position is not None:
            at = parameter.position
            words[at : at + 1] = [value]
        elif parameter.flag:
            words.append(parameter.name)
        elif parameter.name in words:
            words[words.index(parameter.name) + 1] = value
        else:
            words += (
                [f"{parameter.name}={value}"]
                if parameter.name.startswith("--") and rng.random() < 0.3
                else [parameter.name, value]
            )
    return [*command.split(), *words]


def make_special(place: Path) -> None:
    """Paths that are no ordinary files."""
    folder = place / "special"
    folder.mkdir()
    os.mkfifo(folder / "pipe")
    (folder / "loop").symlink_to("loop")
    (folder / "dangling").symlink_to("nowhere/at/all")
    (folder / "folder").mkdir()
    (place / LINK).symlink_to(f"../{LINKED}")
    (folder / "empty").write_bytes(b"")
    (folder / "λ 字\x1b[8m").write_text("x\n")
    (folder / "closed").write_text("x\n")
    (folder / "closed").chmod(0)
    try:
        os.mknod(folder / "device", stat.S_IFCHR | 0o666, os.makedev(1, 5))
    except PermissionError:
        (folder / "device").symlink_to("/dev/zero")
