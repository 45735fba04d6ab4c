"""`di4c convert`: any checkpoint di4c can read, written as a folder of its own format."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Annotated, Any

import typer

from di4c_cli.cli.console import guarded, say
from di4c_cli.errors import UserError

OWN = ("README.md", "config.json", "model.safetensors", "vqgan.safetensors")
"""What a model folder holds, beside the file its codec names."""


def convert(
    source: Annotated[str, typer.Argument(help="A name, Hub id, folder or file.")],
    target: Annotated[Path, typer.Argument(help="The folder to write.")],
    weights: Annotated[str | None, typer.Option(help="ema or live, if the file holds both.")] = None,
    heads: Annotated[
        int | None, typer.Option(min=1, help="Attention heads, if the file does not state them.")
    ] = None,
    codes: Annotated[int | None, typer.Option(min=1, help="Image codes of a MaskGIT model.")] = None,
    length: Annotated[int | None, typer.Option(min=1, help="Positions of a text model.")] = None,
    vqgan: Annotated[
        str | None, typer.Option(help="Image tokenizer: a path, or a teacher that has one.")
    ] = None,
    config: Annotated[
        str | None, typer.Option(help="Configuration file, if it is not beside the weights.")
    ] = None,
    tokenizer: Annotated[str | None, typer.Option(help="tokenizer.json of a text model.")] = None,
    offline: Annotated[bool, typer.Option("--offline", help="Use the cache only.")] = False,
    force: Annotated[bool, typer.Option("--force", help="Replace an existing model folder.")] = False,
    verbose: Annotated[bool, typer.Option("--verbose", help="Show how every tensor was loaded.")] = False,
) -> None:
    """Write a model as a di4c folder: safetensors, config.json, README.md and its codec."""
    options = {
        "weights": weights,
        "heads": heads,
        "codes": codes,
        "length": length,
        "vqgan": vqgan,
        "config": config,
        "tokenizer": tokenizer,
        "offline": offline,
    }
    guarded(lambda: _convert(source, target, options, force, verbose))


def _convert(source: str, target: Path, options: dict[str, Any], force: bool, verbose: bool) -> None:
    from di4c_cli.teacher.convert import convert as write

    _check_target(target, force)
    here = target.exists() and target.samefile(Path.cwd())
    summary = write(source, target, verbose, **options)
    say(summary)
    say(f"wrote {target}" + (" (a new folder of that name: `cd .` enters it)" if here else ""))


def _check_target(target: Path, force: bool) -> None:
    """Only a free name, an empty folder or, with --force, a model folder with nothing else in it is written to."""
    if not target.exists() or _empty(target):
        return
    if not target.is_dir():
        raise UserError(f"{target} exists already.", "Choose another.")
    if not force:
        raise UserError(f"{target} exists already.", "Choose another folder, or --force to replace a model.")
    foreign = _foreign(target)
    if foreign is not None:
        raise UserError(
            f"{target} is not replaced: {foreign} is not part of a di4c model.", "Choose another folder."
        )


def _empty(path: Path) -> bool:
    return path.is_dir() and not any(path.iterdir())


def _foreign(folder: Path) -> str | None:
    """The first thing in a folder that di4c did not write there; None where all of it is a model's."""
    try:
        config = json.loads((folder / "config.json").read_bytes())
    except (OSError, ValueError, RecursionError):
        config = None
    if not isinstance(config, dict) or "di4c" not in config:
        return next(iter(sorted(entry.name for entry in folder.iterdir())), None)
    codec = config.get("codec")
    own = {*OWN, codec.get("file") if isinstance(codec, dict) else None}
    found = sorted(entry.name for entry in folder.iterdir() if entry.name not in own or not entry.is_file())
    return next(iter(found), None)
