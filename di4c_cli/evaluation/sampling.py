"""How the samples of a cell come about: labels and prompts by sample number, the teacher in a hybrid."""

from __future__ import annotations

import hashlib
import time
from dataclasses import dataclass, field
from typing import Any

import numpy as np
import torch
from torch import Tensor

from di4c_cli import __version__
from di4c_cli.errors import UserError
from di4c_cli.evaluation.parts import Scores, identity
from di4c_cli.evaluation.plan import CellPlan
from di4c_cli.evaluation.result import ModelEntry
from di4c_cli.metric.features import tensors_digest
from di4c_cli.model import Model
from di4c_cli.sampler.plan import SamplingPlan

SYMBOLS = 65_536
"""Symbols per part: a part is a second or a minute of work, never an hour's."""


@dataclass
class Entrant:
    """A model that takes part under the name of its row."""

    row: str
    model: Model
    ref: str = ""
    digest: str = field(default="", repr=False)

    def __post_init__(self) -> None:
        self.digest = self.digest or tensors_digest(self.model.denoiser.network.state_dict())

    def entry(self) -> ModelEntry:
        """As it stands in the result file."""
        config = self.model.config
        provenance = config.provenance
        return ModelEntry(
            row=self.row,
            ref=self.ref or config.name,
            name=config.name,
            kind=config.kind,
            revision=str(provenance.get("revision", "")),
            digest=self.digest,
            parameters=sum(p.numel() for p in self.model.denoiser.network.parameters()),
            teacher=str(provenance.get("teacher", "")),
            provenance={
                key: value for key, value in provenance.items() if isinstance(value, (str, int, float))
            },
        )


@dataclass(frozen=True)
class Continuations:
    """Prompts `(P, length)` with -1 where the model writes; each is continued `times` times in a row."""

    given: Tensor
    times: int

    def rows(self, first: int, count: int) -> Tensor:
        """`(count, length)` for samples `first` …"""
        number = torch.arange(first, first + count) // self.times
        return self.given[number % len(self.given)]

    @property
    def digest(self) -> str:
        content = self.given.to(torch.int64).numpy().tobytes()
        return hashlib.blake2b(content, digest_size=8).hexdigest()


def labels_of(model: Model, rule: str, first: int, count: int) -> list[int] | None:
    """Labels by sample number: every class equally often, one class, or none."""
    classes = model.config.labels
    if classes is None or rule == "none":
        return None
    if rule == "uniform":
        return [number % classes for number in range(first, first + count)]
    if not 0 <= int(rule) < classes:
        raise UserError(f"Label {rule} is out of range.", f"This model's labels go from 0 to {classes - 1}.")
    return [int(rule)] * count


class CellSampling:
    """One cell's samples: what they depend on, and drawing a part of them."""

    def __init__(
        self,
        entrant: Entrant,
        cell: CellPlan,
        seed: int,
        labels: str,
        prompts: Continuations | None = None,
        teacher: Entrant | None = None,
    ) -> None:
        self.entrant, self.cell, self.seed, self.prompts = entrant, cell, seed, prompts
        self.model = entrant.model
        self.labels = cell.label or labels
        self.options = cell.sampling()
        self.teacher = teacher if self.options.get("hybrid") else None
        if self.options.get("hybrid") and teacher is None:
            raise UserError("A hybrid cell needs the teacher.", "Name it with --teacher.")
        labelled = labels_of(self.model, self.labels, 0, 1) is not None
        self.plan = SamplingPlan.resolve(
            self.model.denoiser,
            self.model.config.sampling,
            labelled,
            self.length,
            steps=cell.steps,
            **self.options,
        )
        if self.plan.hybrid:  # by the cell's options or because the student hands off to its teacher
            self.teacher = teacher or Entrant("teacher", self.model.teacher)
        self.settings = self.plan.settings()

    @property
    def length(self) -> int:
        return self.model.denoiser.length if self.prompts is None else int(self.prompts.given.shape[1])

    @property
    def part(self) -> int:
        """Samples in a part; whole groups of 50, so that figures over groups fit."""
        return max(50, min(500, SYMBOLS // self.length // 50 * 50))

    @property
    def label_text(self) -> str:
        """How the labels were chosen, for the result."""
        if labels_of(self.model, self.labels, 0, 1) is None:
            return "unconditional"
        return "every class equally often" if self.labels == "uniform" else f"class {self.labels}"

    @property
    def key(self) -> str:
        """A folder name that is different whenever the samples are."""
        facts: dict[str, Any] = {
            "model": self.entrant.digest,
            "settings": self.settings,
            "seed": self.seed,
            "labels": self.labels,
            "size": self.part,
            "version": __version__,
            "teacher": None if self.teacher is None else self.teacher.digest,
            "prompts": None if self.prompts is None else self.prompts.digest,
        }
        return f"{self.cell.row}-{self.cell.steps}-{identity(**facts)}".replace("/", "_")

    def draw(self, first: int, count: int) -> Scores:
        """Samples `first` … as a part: ids in the smallest integers that hold them, and the time it took."""
        start = time.monotonic()
        more: dict[str, Any] = {"plan": self.plan}
        if self.teacher is not None:
            more["teacher"] = self.teacher.model.denoiser
        if self.prompts is not None:
            more["given"] = self.prompts.rows(first, count)
        label = labels_of(self.model, self.labels, first, count)
        x = self.model.sample(count, seed=self.seed, label=label, first=first, **more)
        symbols = self.model.denoiser.symbols
        narrow = np.uint8 if symbols <= 256 else np.uint16 if symbols <= 65_536 else np.int64
        return {"x": x.numpy().astype(narrow), "seconds": np.array([time.monotonic() - start])}
