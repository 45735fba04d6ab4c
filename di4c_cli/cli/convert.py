"""`di4c convert`: writes any checkpoint that di4c can read as a model folder."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated, Any

import typer

from di4c_cli.cli.console import say
from di4c_cli.config import ADAPTER_FILES
from di4c_cli.errors import UserError
from di4c_cli.teacher import safe

OWN_FILES = ("README.md", "config.json", "model.safetensors", "vqgan.safetensors", *ADAPTER_FILES)
"""The files of a model folder, besides the codec's file."""


def convert(
    source: Annotated[str, typer.Argument(help="A name, Hub id, folder or file.")],
    target: Annotated[Path, typer.Argument(help="The folder to write.")],
    weights: Annotated[str | None, typer.Option(help="ema or live, where a file holds both.")] = None,
    heads: Annotated[
        int | None, typer.Option(min=1, max=4096, help="Attention heads, if a file does not record them.")
    ] = None,
    codes: Annotated[int | None, typer.Option(min=1, max=2**16, help="Image codes of a MaskGIT model.")] = None,
    length: Annotated[int | None, typer.Option(min=1, max=2**18, help="Positions of a text model.")] = None,
    vqgan: Annotated[str | None, typer.Option(help="The image tokenizer: a path, or a teacher with one.")] = None,
    config: Annotated[str | None, typer.Option(help="A configuration that is not beside the weights.")] = None,
    tokenizer: Annotated[str | None, typer.Option(help="tokenizer.json of a text model.")] = None,
    base: Annotated[str | None, typer.Option(help="The teacher of an adapter, if di4c cannot find it.")] = None,
    offline: Annotated[bool, typer.Option("--offline", help="Use the cache only.")] = False,
    force: Annotated[bool, typer.Option("--force", help="Replace an existing model folder.")] = False,
    verbose: Annotated[bool, typer.Option("--verbose", help="Print what happened to every tensor.")] = False,
) -> None:
    """Write a model as a di4c folder: safetensors, config.json, README.md and its codec."""
    options: dict[str, Any] = {"weights": weights, "heads": heads, "codes": codes, "length": length, "vqgan": vqgan}
    options |= {"config": config, "tokenizer": tokenizer, "base": base, "offline": offline}
    from di4c_cli.teacher.convert import convert as write

    _check_target(target, force)
    here = target.exists() and target.samefile(Path.cwd())
    say(write(source, target, verbose, **options))
    say(f"wrote {target}" + (" (a new folder of that name: `cd .` enters it)" if here else ""))


def _check_target(target: Path, force: bool) -> None:
    """Accept a new name, an empty folder or, with --force, a folder that holds a model and nothing else."""
    if not target.exists() or (target.is_dir() and not any(target.iterdir())):
        return
    if not target.is_dir():
        raise UserError(f"{target} exists already.", "Choose another.")
    if not force:
        raise UserError(f"{target} exists already.", "Choose another folder, or --force to replace a model.")
    config, own = safe.read_tree(target / "config.json"), set[str | None]()
    if config is not None and "di4c" in config:
        codec = config.get("codec")
        own = {*OWN_FILES, codec.get("file") if isinstance(codec, dict) else None}
    foreign = sorted(entry.name for entry in target.iterdir() if entry.name not in own or not entry.is_file())
    if foreign:
        problem = f"{target} is not replaced: {foreign[0]} is not part of a di4c model."
        raise UserError(problem, "Choose another folder.")
