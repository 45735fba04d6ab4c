"""`di4c convert`: any checkpoint di4c can read, written as a folder of its own format."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated, Any

import typer

from di4c_cli.cli.console import guarded, say
from di4c_cli.errors import UserError


def convert(
    source: Annotated[str, typer.Argument(help="A name, Hub id, folder or file.")],
    target: Annotated[Path, typer.Argument(help="The folder to write.")],
    weights: Annotated[str | None, typer.Option(help="ema or live, where a file holds both.")] = None,
    heads: Annotated[
        int | None, typer.Option(min=1, help="Attention heads, where a file does not tell.")
    ] = None,
    codes: Annotated[int | None, typer.Option(min=1, help="Image codes of a MaskGIT model.")] = None,
    length: Annotated[int | None, typer.Option(min=1, help="Positions of a text model.")] = None,
    vqgan: Annotated[
        str | None, typer.Option(help="The image tokenizer: a path, or a teacher with one.")
    ] = None,
    config: Annotated[
        str | None, typer.Option(help="A configuration that is not beside the weights.")
    ] = None,
    tokenizer: Annotated[str | None, typer.Option(help="tokenizer.json of a text model.")] = None,
    offline: Annotated[bool, typer.Option("--offline", help="Use the cache only.")] = False,
    force: Annotated[bool, typer.Option("--force", help="Replace an existing model folder.")] = False,
    verbose: Annotated[bool, typer.Option("--verbose", help="Show what became of every tensor.")] = False,
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

    if target.exists() and not (force and (target / "config.json").is_file()) and not _empty(target):
        hint = (
            "Choose another folder, or --force to replace a model." if target.is_dir() else "Choose another."
        )
        raise UserError(f"{target} exists already.", hint)
    summary = write(source, target, verbose, **options)
    say(summary)
    say(f"wrote {target}")


def _empty(path: Path) -> bool:
    return path.is_dir() and not any(path.iterdir())
