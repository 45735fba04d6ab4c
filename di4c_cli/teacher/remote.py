"""What can be known of a teacher on the Hub before its weights are fetched."""

from __future__ import annotations

from dataclasses import dataclass
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING

from di4c_cli import hub
from di4c_cli.errors import UserError
from di4c_cli.teacher import exists, plugins, registry

if TYPE_CHECKING:
    from di4c_cli.config import ModelConfig

WEIGHTS = "model.safetensors"


@dataclass(frozen=True)
class Remote:
    """Files of a teacher at one revision of a repository; each may have several names."""

    name: str
    repo: str
    revision: str
    choices: list[list[str]]
    megabytes: float | None = None

    @property
    def cached(self) -> bool:
        """Whether all files are here; asks no network."""
        return all(hub.is_cached(self.repo, self.revision, names) for names in self.choices)

    def reach(self) -> str:
        """Ask the Hub for the head of a file: where the teacher is and how large, or why it cannot be had."""
        from huggingface_hub import get_hf_file_metadata, hf_hub_url

        file = self.choices[-1][-1] if self.megabytes is None else self.choices[0][-1]
        where = f"{self.repo}@{self.revision}"
        url = hf_hub_url(self.repo, file, revision=self.revision)
        head = hub.attempt(partial(get_hf_file_metadata, url, timeout=hub.TIMEOUT), where, file)
        size = self.megabytes if self.megabytes is not None else (head.size or 0) / 1e6
        return f"Hub {where}, {size:.0f} MB"

    def config(self) -> ModelConfig | None:
        """The settings of a model in our own format, if its config.json is in the cache."""
        from huggingface_hub import try_to_load_from_cache

        from di4c_cli import student

        path = try_to_load_from_cache(self.repo, "config.json", revision=self.revision)
        if not isinstance(path, str):
            return None
        try:
            return student.read_config(Path(path).parent)
        except UserError:
            return None  # another format


def remote(ref: str) -> Remote | None:
    """The Hub's files behind a reference, in the order `teacher.find` looks; None for what is elsewhere."""
    name, _, revision = ref.partition("@")
    entry = registry.entries().get(name)
    if entry is not None and entry.source != "hub":
        return None
    if entry is not None:
        branch = hub.check_revision(revision or entry.revision or "main")
        return Remote(name, str(entry.repo), branch, entry.choices, entry.megabytes)
    if ref in plugins.points() or not hub.is_id(name):
        return None
    if exists(ref) or (not revision and Path(name).parent.is_dir()):
        return None
    return Remote(name, name, hub.check_revision(revision or "main"), [["config.json"], [WEIGHTS]])


def recipe_by_config(found: Remote) -> str | None:
    """The recipe for a repository whose config.json tells its format; None where the weights are needed too."""
    path = hub.Fetcher(found.repo, found.revision).get("config.json")
    from di4c_cli.teacher.formats import mdlm, own, sdtt
    from di4c_cli.teacher.source import Source

    source = Source(found.name, [path])
    if own.detect(source):
        return own.recipe(source)
    return next((module.RECIPE for module in (sdtt, mdlm) if source.tree(module.is_config)), None)
