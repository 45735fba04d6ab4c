"""Models by reference: embedded ones, names of the registry, Hub ids, folders and files of every known format."""

from __future__ import annotations

import logging
import sys
from pathlib import Path
from typing import TYPE_CHECKING, Any

from di4c_cli import hub, recipe_file
from di4c_cli.embedded import current_name
from di4c_cli.errors import UserError
from di4c_cli.printable import printable
from di4c_cli.teacher import plugins, registry
from di4c_cli.teacher.bundle import Bundle, LoadedModel, LoadOptions
from di4c_cli.teacher.model_files import ModelFiles
from di4c_cli.teacher.reference import find, or_a_folder, remote

if TYPE_CHECKING:
    from di4c_cli.load_report import LoadReport

__all__ = ["find", "read", "recipe_for", "remote", "resolve"]


def resolve(ref: str, verbose: bool = False, **options: Any) -> LoadedModel:
    """The model behind a reference, as arguments of `Model`; `verbose` prints the load report.

    `options` are those of `LoadOptions`: `weights`, `heads`, `codes`, `length`, `vqgan`, `config`, `tokenizer`,
    `offline`.
    """
    loaded = read(ref, **options).load()
    show_report(loaded.load_report, verbose)
    return loaded


def show_report(report: LoadReport, verbose: bool) -> None:
    """Print the report if `verbose`, otherwise log it; `di4c --verbose` shows the log."""
    for line in map(printable, report.lines()):
        if verbose:
            print(line, file=sys.stderr)
        else:
            logging.getLogger(__name__).info("%s", line)


def read(ref: str, **options: Any) -> Bundle:
    """The model behind a reference, before its network is built."""
    known = LoadOptions.__dataclass_fields__
    for name in options:
        if name not in known:
            raise UserError(f"Loading a model has no option '{name}'.", f"Known: {', '.join(known)}.")
    given = LoadOptions(**options)
    added = plugins.read(ref, given)
    if added is not None:
        return added
    source = find(ref, given)
    cached = source.files if "repo" in source.origin else []
    try:
        bundle = _read_files(source, given)
    except UserError as error:
        raise hub.damage_or(error, cached) from error
    bundle.cached = cached
    return bundle


def _read_files(source: ModelFiles, options: LoadOptions) -> Bundle:
    from di4c_cli.teacher import formats  # imports torch, for which a failed download need not wait

    if options.config is not None:
        extra = Path(options.config)
        if not extra.is_file():
            raise UserError(f"There is no configuration file {extra}.", "Check the path.")
        others = [path for path in source.files if path.suffix not in (".json", ".yaml", ".yml")]
        source.files = [extra, *others]
    bundle: Bundle = formats.find(source, plugins.formats).read(source, options)
    return bundle


def recipe_for(ref: str, method: str | None = None) -> str:
    """The recipe that distils a reference: that of its registry entry, of its own provenance, or of its format.

    With a method, a recipe of that method for a registered teacher of the same family comes first.
    """
    name = _recipe_of(ref)
    for other in recipe_file.names() if method is not None else ():
        if other.startswith(f"{method}/"):
            entry = registry.find_entry(str(recipe_file.raw(other).get("teacher")))
            if entry is not None and entry.recipe == name and f"{method}/{name}" not in recipe_file.names():
                return other
    return name


def _recipe_of(ref: str) -> str:
    entry = registry.find_entry(ref)
    if entry is not None:
        return entry.recipe
    recipe = None if ref in plugins.points() else _recipe_of_files(ref)
    recipe = None if recipe is None else current_name(recipe)
    if recipe not in recipe_file.names():
        hint = "Name one with --recipe; `di4c recipes` lists them."
        raise UserError(f"There is no recipe of its own for the teacher '{ref}'.", hint)
    return str(recipe)


def _recipe_of_files(ref: str) -> str | None:
    """From config.json alone where that tells the format; otherwise the weights are fetched too."""
    far = remote(ref)
    with or_a_folder(ref):
        config = None if far is None else hub.Fetcher(far.repo, far.revision).get("config.json")
    from di4c_cli.teacher import formats  # imports torch, for which a failed download need not wait

    recipe = None if config is None else formats.recipe_by_config(ModelFiles(ref, [config]))
    if recipe is None:
        source = find(ref, LoadOptions())
        adapter = formats.find(source, plugins.formats)
        recipe = getattr(adapter, "RECIPE", None) or formats.own.recipe(source)
    return recipe
