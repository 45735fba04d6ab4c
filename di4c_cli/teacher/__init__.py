"""Names to models: embedded ones, names of the registry, Hub ids, folders and files of every known format."""

from __future__ import annotations

import logging
import sys
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, Any

from di4c_cli import hub
from di4c_cli.errors import UserError
from di4c_cli.teacher import plugins, registry
from di4c_cli.teacher.options import Options

if TYPE_CHECKING:
    from di4c_cli.account import Account
    from di4c_cli.model import Model
    from di4c_cli.teacher.bundle import Bundle
    from di4c_cli.teacher.formats.vqgan import Tokenizer
    from di4c_cli.teacher.source import Source


def resolve(ref: str, verbose: bool = False, **options: Any) -> Model:
    """The model a reference names; `verbose` prints what became of every tensor.

    Options are those of `teacher.bundle.Options`: `weights`, `heads`, `codes`, `length`, `vqgan`, `config`,
    `tokenizer`, `offline`.
    """
    model = read(ref, **options).model()
    if model.account is not None:
        tell(model.account, verbose)
    return model


def tell(account: Account, verbose: bool) -> None:
    """Print the account if it was asked for; `di4c --verbose` asks for that of every model."""
    text = "\n".join(account.lines())
    if verbose:
        print(text, file=sys.stderr)
    else:
        logging.getLogger(__name__).info(text)


def read(ref: str, **options: Any) -> Bundle:
    """What a reference names, before its network is built."""
    known = Options.__dataclass_fields__
    for name in options:
        if name not in known:
            raise UserError(f"Loading a model has no option '{name}'.", f"Known: {', '.join(known)}.")
    given = Options(**options)
    added = plugins.read(ref, given)
    if added is not None:
        return added
    source = find(ref, given)
    cached = source.files if "repo" in source.origin else []
    try:
        bundle = _read_source(source, given)
    except UserError as error:
        raise hub.blame(error, cached) from error
    bundle.cached = cached
    return bundle


def find(ref: str, options: Options) -> Source:
    """The files behind a reference, fetched if need be. Names come before paths; `./name` is a path."""
    name, _, revision = ref.partition("@")
    entry = registry.entries().get(name)
    if entry is not None and entry.source == "local" and not Path(ref).exists():
        raise UserError(
            f"'{name}' is not on the Hub: {entry.where}.",
            "Download it and name the file instead of the name.",
        )
    if entry is not None and entry.source == "embedded":
        if revision:
            raise UserError(f"'{name}' is part of di4c and has no revisions.", f"Write {name}.")
        return _at(entry.folder, entry.name)
    if entry is not None and entry.source == "hub":
        for option, value in entry.options.items():
            if getattr(options, option) is None:
                setattr(options, option, value)
        return _fetch_entry(entry, revision or None, options)
    if exists(ref):
        return _at(Path(ref))
    if hub.is_id(name) and not revision and Path(name).parent.is_dir():
        raise UserError(f"There is no model at {name}.", f"Check the path, or write {name}@main for the Hub.")
    if hub.is_id(name):
        return _fetch_id(name, revision or None, options)
    raise registry.unknown(ref, list(plugins.points()))


def recipe_of(ref: str) -> str:
    """The recipe for what is no name of the registry: that of its own history, or of its format."""
    from di4c_cli import recipe_file
    from di4c_cli.teacher import formats
    from di4c_cli.teacher.remote import recipe_by_config, remote

    hint = "Name one with --recipe; `di4c recipes` lists them."
    if ref in plugins.points():
        raise UserError(f"There is no recipe of its own for the teacher '{ref}'.", hint)
    far = remote(ref)
    recipe = None if far is None else recipe_by_config(far)
    if recipe is None:
        source = find(ref, Options())
        adapter = formats.find(source, plugins.formats)
        recipe = getattr(adapter, "RECIPE", None) or formats.own.recipe(source)
    if recipe not in recipe_file.names():
        raise UserError(f"There is no recipe of its own for the teacher '{ref}'.", hint)
    return str(recipe)


def exists(ref: str) -> bool:
    """Whether a reference is a path on this machine."""
    try:
        return Path(ref).exists()
    except (OSError, ValueError):  # longer than a path may be, or with a NUL inside
        return False


def _at(path: Path, name: str | None = None) -> Source:
    """A path; the folder of a run stands for its last student."""
    from di4c_cli.teacher.source import Source

    if (path / "student" / "config.json").is_file():
        path = path / "student"
    elif name is not None and not path.is_dir():
        raise UserError(
            f"The embedded model '{name}' is missing from this installation.", "Install di4c again."
        )
    source = Source.at(path)
    source.name = name or source.name
    return source


def _fetch_entry(entry: registry.Entry, revision: str | None, options: Options) -> Source:
    fetcher = hub.Fetcher(str(entry.repo), revision or entry.revision, options.offline)
    for choices in entry.choices:
        fetcher.get(*choices)
    snapshot = fetcher.snapshot()
    from di4c_cli.teacher.source import Source  # after the fetching: its failures need not wait for torch

    return Source(entry.name, snapshot.files, {**snapshot.origin, "licence": entry.licence})


def _fetch_id(repo: str, revision: str | None, options: Options) -> Source:
    """A repository in our own or a foreign layout: configuration, weights, the codec's file if any."""
    fetcher = hub.Fetcher(repo, revision, options.offline)
    config = fetcher.get("config.json")
    from di4c_cli import student  # after the first fetching: its failures need not wait for torch
    from di4c_cli.teacher.formats import own
    from di4c_cli.teacher.source import Source

    source = Source(repo.partition("/")[2], fetcher.files)
    if own.detect(source):
        file = student.read_config(config.parent).codec.get("file")
        if file is not None and (
            not isinstance(file, str) or Path(file).name != file or file.startswith(".")
        ):
            raise UserError(
                f"The codec's file name {file!r} in {repo} is not a plain name.", "Use another model."
            )
        if file is not None:
            fetcher.get(file)
    fetcher.get("model.safetensors")
    snapshot = fetcher.snapshot()
    return Source(source.name, snapshot.files, snapshot.origin)


def _read_source(source: Source, options: Options) -> Bundle:
    from di4c_cli.teacher import formats

    if options.config is not None:
        extra = Path(options.config)
        if not extra.is_file():
            raise UserError(f"There is no configuration file {extra}.", "Check the path.")
        source.files = [
            extra,
            *(path for path in source.files if path.suffix not in (".json", ".yaml", ".yml")),
        ]
    adapter = formats.find(source, plugins.formats)
    if adapter is formats.maskgit:
        return formats.maskgit.read(source, options, partial(_tokenizer, offline=options.offline))
    bundle: Bundle = adapter.read(source, options)
    return bundle


def _tokenizer(ref: str, offline: bool = False) -> Tokenizer:
    """The VQGAN at a path, or the one that a teacher of the registry comes with."""
    from di4c_cli.teacher.formats import vqgan

    return vqgan.read(find(ref, Options(offline=offline)))
