"""The registry of known teachers and students, read from registry.yaml. Imports no torch."""

from __future__ import annotations

from functools import lru_cache
from itertools import product
from pathlib import Path
from typing import Any, Literal

import yaml
from pydantic import BaseModel, ConfigDict, Field

from di4c_cli import embedded
from di4c_cli.config import ModelConfig
from di4c_cli.errors import UserError
from di4c_cli.recipe_file import nearest
from di4c_cli.teacher.architectures import architecture


class Entry(BaseModel):
    """One known model."""

    model_config = ConfigDict(extra="forbid", frozen=True)
    name: str
    source: Literal["hub", "local", "embedded"]
    format: str
    recipe: str
    licence: str
    note: str
    repo: str | None = None
    revision: str | None = None
    files: tuple[str, ...] = ()
    where: str = Field("", description="for what is not on the Hub: where its authors publish it")
    architecture: str | None = Field(None, description="a name of architectures.yaml")
    parameters: int | None = Field(None, description="number of weights, if the network has no name there")
    weight_bytes: int = Field(4, description="of one weight in the published file")
    options: dict[str, Any] = Field(default_factory=dict, description="what the files do not record")

    @property
    def choices(self) -> list[list[str]]:
        """For each file to fetch the names it may have."""
        return [[name.strip() for name in file.split("|")] for file in self.files]

    @property
    def origin(self) -> str:
        """Where the model comes from, as text."""
        if self.source == "hub":
            return f"Hub {self.repo}@{self.revision}"
        return "inside di4c" if self.source == "embedded" else "a local file"

    @property
    def folder(self) -> Path:
        """The folder of an embedded model."""
        task, _, kind = self.name.partition("-")
        return embedded.model(task, kind or "teacher")

    @property
    def megabytes(self) -> float | None:
        """Size of the weights on disk."""
        if self.source == "embedded":
            weights = self.folder / "model.safetensors"
            return weights.stat().st_size / 1e6 if weights.is_file() else None
        known = None if self.architecture is None else architecture(self.architecture).parameters
        count = self.parameters or known
        return None if count is None else self.weight_bytes * count / 1e6


def _expand(tree: dict[str, Any]) -> list[Entry]:
    """An entry, or the family that its `over` describes."""
    over = tree.pop("over", {})
    members = []
    for values in product(*over.values()):
        filling = dict(zip(over, values))
        text = {key: value.format(**filling) for key, value in tree.items() if isinstance(value, str)}
        members.append(Entry.model_validate(tree | text))
    return members


@lru_cache(maxsize=1)
def entries() -> dict[str, Entry]:
    """All names: those inside the package first, then in the file's order."""
    trees = yaml.safe_load(Path(__file__).with_name("registry.yaml").read_text(encoding="utf-8"))
    found = {entry.name: entry for tree in trees for entry in _expand(tree)}
    order = ["embedded", "hub", "local"]
    return dict(sorted(found.items(), key=lambda item: order.index(item[1].source)))


def find_entry(ref: str) -> Entry | None:
    """The entry of a name, with or without a revision; names of version 0.1 are understood."""
    return entries().get(embedded.current_name(ref.partition("@")[0]))


def published_config(ref: str) -> ModelConfig | None:
    """The configuration that a teacher of the registry has once it is fetched; None where it is not known."""
    entry = find_entry(ref)
    if entry is None or entry.architecture is None:
        return None
    settings = architecture(entry.architecture).model_dump(exclude={"parameters"})
    labels = settings["network"].get("labels")
    return ModelConfig(kind="teacher", name=entry.name, labels=labels, **settings)


def unknown(ref: str, more: list[str], kinds: str = "name, folder, file or Hub id") -> UserError:
    """The error for an unknown name; `more` are the names that packages add, `kinds` what it could have been."""
    problem = f"There is no model '{ref}': no {kinds}.{nearest(ref, [*entries(), *more])}"
    return UserError(problem, "Run `di4c teachers` to list the names.")
