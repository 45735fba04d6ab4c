"""Sampling of a cell: labels and prompts by sample number, and the teacher of a hybrid."""

from __future__ import annotations

import time
from typing import Any

import numpy as np

from di4c_cli import __version__
from di4c_cli.errors import UserError
from di4c_cli.evaluation.models import EvaluatedModel
from di4c_cli.evaluation.parts import Scores, identity
from di4c_cli.evaluation.prompts import Continuations
from di4c_cli.evaluation.protocol import CellSpec
from di4c_cli.model import Model
from di4c_cli.sampler.plan import SamplingPlan

SYMBOLS_PER_PART = 65_536
"""A part takes seconds or minutes, so that little is lost when an evaluation is stopped."""
SAMPLES_PER_GROUP = 50
"""Parts hold whole groups of the figures that are computed over groups."""
MAX_SAMPLES_PER_PART = 500


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
    """The samples of one cell and seed."""

    def __init__(
        self,
        evaluated: EvaluatedModel,
        cell: CellSpec,
        seed: int,
        labels: str,
        prompts: Continuations | None = None,
        teacher: EvaluatedModel | None = None,
    ) -> None:
        self.evaluated, self.cell, self.seed, self.prompts = evaluated, cell, seed, prompts
        self.model = evaluated.model
        self.labels = cell.label or labels
        if cell.options.get("hybrid") and teacher is None:
            raise UserError("A hybrid cell needs the teacher.", "Name it with --teacher.")
        self.labelled = labels_of(self.model, self.labels, 0, 1) is not None
        denoiser, defaults = self.model.denoiser, self.model.config.sampling
        self.plan = SamplingPlan.resolve(
            denoiser, defaults, self.labelled, self.length, steps=cell.steps, **cell.options
        )
        self.plan.blocks(self.length if prompts is None else (prompts.given < 0).sum(1))  # before the first sample
        self.teacher = None
        if self.plan.hybrid:  # by the cell's options or because the student hands off to its teacher
            self.teacher = teacher or EvaluatedModel("teacher", self.model.teacher)
        self.settings = self.plan.settings()

    @property
    def length(self) -> int:
        return self.model.denoiser.length if self.prompts is None else int(self.prompts.given.shape[1])

    @property
    def part(self) -> int:
        """Samples in a part: whole groups."""
        group = SAMPLES_PER_GROUP
        return max(group, min(MAX_SAMPLES_PER_PART, SYMBOLS_PER_PART // self.length // group * group))

    @property
    def label_text(self) -> str:
        """How the labels were chosen, for the result."""
        if not self.labelled:
            return "unconditional"
        return "every class equally often" if self.labels == "uniform" else f"class {self.labels}"

    @property
    def key(self) -> str:
        """A folder name that differs whenever the samples do."""
        facts: dict[str, Any] = {
            "model": self.evaluated.digest,
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
        """Samples from number `first` on: ids in the smallest integer type that holds them, time, tokens, passes."""
        start, given = time.monotonic(), None if self.prompts is None else self.prompts.rows(first, count)
        networks = [one.denoiser for one in (self.model, *([] if self.teacher is None else [self.teacher.model]))]
        passes = -sum(network.passes for network in networks)
        x = self.model.sample(
            count,
            seed=self.seed,
            label=labels_of(self.model, self.labels, first, count),
            first=first,
            given=given,
            teacher=None if self.teacher is None else self.teacher.model.denoiser,
            plan=self.plan,
        )
        symbols = self.model.denoiser.symbols
        narrow = np.uint8 if symbols <= 256 else np.uint16 if symbols <= 65_536 else np.int64
        passes += sum(network.passes for network in networks)
        tokens = x.numel() if given is None else int((given < 0).sum())
        counts = {"tokens": np.array([tokens]), "passes": np.array([passes])}
        return {"x": x.numpy().astype(narrow), "seconds": np.array([time.monotonic() - start]), **counts}
