"""From a reference to files: names of the registry, Hub ids, folders and files. Imports no torch."""

from __future__ import annotations

import warnings
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from functools import partial
from pathlib import Path

from di4c_cli import embedded, files, hub
from di4c_cli.config import ADAPTER_FILES, ModelConfig
from di4c_cli.errors import Di4cError, Failure, NameWarning, UserError
from di4c_cli.foreign.regular import is_plain_name
from di4c_cli.limits import read_config
from di4c_cli.teacher import plugins, registry
from di4c_cli.teacher.bundle import LoadOptions
from di4c_cli.teacher.model_files import MAX_FILES, ModelFiles, is_own_config

WEIGHTS = ("model.safetensors", "model.safetensors.index.json", "pytorch_model.bin", "pytorch_model.bin.index.json")


def find(ref: str, options: LoadOptions) -> ModelFiles:
    """The files behind a reference, fetched if necessary. Names come before paths; `./name` is a path."""
    name, _, revision = embedded.ask_name(ref).partition("@")
    entry = registry.find_entry(name)
    if entry is not None and entry.source == "local" and not Path(ref).exists():
        raise UserError(f"'{name}' is not on the Hub: {entry.where}.", "Download it and name the file.")
    if entry is not None and entry.source != "local" and exists(ref):
        warnings.warn(f"{ref} is the name of a model; write ./{ref} for the path.", NameWarning, stacklevel=1)
    if entry is not None and entry.source == "embedded":
        if revision:
            raise UserError(f"'{name}' is part of di4c and has no revisions.", f"Write {name}.")
        return _at(entry.folder, entry.name)
    if entry is not None and entry.source == "hub":
        for option, value in entry.options.items():
            if getattr(options, option) is None:
                setattr(options, option, value)
        fetcher = hub.Fetcher(str(entry.repo), revision or entry.revision, options.offline)
        for choices in entry.choices:
            fetcher.get(*choices)
        _fetch_shards(fetcher)
        return ModelFiles(entry.name, fetcher.files, {**fetcher.origin, "licence": entry.licence})
    if exists(ref):
        return _at(Path(ref))
    if hub.is_id(name) and not revision and Path(name).parent.is_dir():
        raise UserError(f"There is no model at {name}.", f"Check the path, or write {name}@main for the Hub.")
    if hub.is_id(name):
        with or_a_folder(ref):
            return _fetch_id(name, revision or None, options)
    if "/" in ref or ref.endswith((".ckpt", ".pt", ".pth", ".bin", ".safetensors")):
        where = "" if Path(ref).is_absolute() else " in the current folder"
        raise UserError(f"There is no model '{ref}': no such file or folder{where}.", "Check the path.")
    raise registry.unknown(ref, list(plugins.points()))


@contextmanager
def or_a_folder(ref: str) -> Iterator[None]:
    """A Hub id without a revision may be a mistyped path: where the Hub does not know it, the error says so first."""
    try:
        yield
    except Di4cError as error:
        absent = isinstance(error, Failure) or type(error.__cause__).__name__ == "RepositoryNotFoundError"
        if absent and hub.is_id(ref):
            raise type(error)(f"There is no folder or file {ref} here. {error.message}", error.hint) from error
        raise


def exists(ref: str) -> bool:
    """Whether a reference is a path on this machine."""
    try:
        files.recover(Path(ref))
        return Path(ref).exists()
    except (OSError, ValueError):  # too long for a path, or with a NUL inside
        return False


def _at(path: Path, name: str | None = None) -> ModelFiles:
    """The files at a path; for the folder of a run, those of its last student, or of the teacher that it trained."""
    made = [path / kind for kind in ("student", "teacher") if (path / kind / "config.json").is_file()]
    if made:
        path = made[0]
    elif name is not None and not path.is_dir():
        raise UserError(f"This installation lacks the embedded model '{name}'.", "Install di4c again.")
    source = ModelFiles.at(path)
    source.name = name or source.name
    return source


def _fetch_id(repo: str, revision: str | None, options: LoadOptions) -> ModelFiles:
    """A repository in our own or a foreign layout: configuration, weights, and the codec's file if it has one."""
    fetcher = hub.Fetcher(repo, revision, options.offline)
    config, name = fetcher.get("config.json"), repo.partition("/")[2]
    if ModelFiles(name, [config]).tree(is_own_config) is not None:
        settings = read_config(config.parent)
        file = settings.codec_file_name()
        for needed in (file, ADAPTER_FILES[0] if settings.adapter is not None else None, WEIGHTS[0]):
            if needed is not None:
                fetcher.get(needed)
        return ModelFiles(name, fetcher.files, fetcher.origin)
    for file in ("tokenizer.json", "vocab.txt"):
        fetcher.maybe(file)
    if not any(fetcher.maybe(file) for file in WEIGHTS):
        fetcher.get(WEIGHTS[0])
    _fetch_shards(fetcher)
    return ModelFiles(name, fetcher.files, fetcher.origin)


def _fetch_shards(fetcher: hub.Fetcher) -> None:
    """The files that an index of sharded weights lists."""
    for tree in ModelFiles("", [path for path in fetcher.files if path.name.endswith(".index.json")]).trees:
        listed = tree.get("weight_map")
        for name in sorted({str(name) for name in listed.values()} if isinstance(listed, dict) else [])[:MAX_FILES]:
            if not is_plain_name(name):
                raise UserError(f"The index of {fetcher.repo} lists {name!r}, not a plain name.", "Fetch it again.")
            fetcher.get(name)


@dataclass(frozen=True)
class RemoteModel:
    """A model on the Hub before its weights are fetched; each of its files may have several names."""

    name: str
    repo: str
    revision: str
    choices: list[list[str]]
    megabytes: float | None = None

    @property
    def cached(self) -> bool:
        """Whether the cache holds all files; asks no network."""
        return all(hub.is_cached(self.repo, self.revision, names) for names in self.choices)

    def reach(self) -> str:
        """Ask the Hub for the metadata of a file: where the model is and how large, or the reason of a failure."""
        file = self.choices[-1][-1] if self.megabytes is None else self.choices[0][-1]
        where, client = f"{self.repo}@{self.revision}", hub.client()
        url = client.hf_hub_url(self.repo, file, revision=self.revision)
        call = partial(client.get_hf_file_metadata, url, timeout=hub.TIMEOUT_SECONDS)
        with or_a_folder(self.name):
            head = hub.attempt(call, where, file)
        return f"Hub {where}, {(head.size or 0) / 1e6 if self.megabytes is None else self.megabytes:.0f} MB"

    def config(self) -> ModelConfig | None:
        """The config of a model in our own format, if the cache holds its config.json."""
        path = hub.client().try_to_load_from_cache(self.repo, "config.json", revision=self.revision)
        try:
            return read_config(Path(path).parent) if isinstance(path, str) else None
        except UserError:
            return None  # another format


def remote(ref: str) -> RemoteModel | None:
    """The Hub's files behind a reference, in the order in which `find` looks; None for what is elsewhere."""
    name, _, revision = ref.partition("@")
    entry = registry.find_entry(name)
    if entry is not None and entry.source != "hub":
        return None
    if entry is not None:
        branch = hub.check_revision(revision or entry.revision or "main")
        return RemoteModel(name, str(entry.repo), branch, entry.choices, entry.megabytes)
    if ref in plugins.points() or not hub.is_id(name):
        return None
    if exists(ref) or (not revision and Path(name).parent.is_dir()):
        return None
    choices = [["config.json"], list(reversed(WEIGHTS))]
    return RemoteModel(name, name, hub.check_revision(revision or "main"), choices)
