"""Run a plan: sample every cell in parts, score the parts, and put the figures into one result."""

from __future__ import annotations

import importlib.metadata
import platform
import re
import shutil
import tempfile
import time
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from datetime import datetime, timezone
from pathlib import Path
from typing import Any

import numpy as np
import torch
from torch import Tensor

from di4c_cli import __version__
from di4c_cli.codec.grid import save_grid
from di4c_cli.errors import UserError
from di4c_cli.evaluation.parts import Parts, Scores, identity
from di4c_cli.evaluation.plan import CellPlan, Plan
from di4c_cli.evaluation.result import Cell, Instrument, ModelEntry, Results
from di4c_cli.evaluation.scorer import Scorer
from di4c_cli.metric.features import tensors_digest
from di4c_cli.model import Model
from di4c_cli.sampler.settings import resolve

PACKAGES = ("torch", "numpy", "tokenizers", "safetensors", "transformers", "nltk")
SHOWN, SHOWN_TEXTS = 25, 6
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


def labels_of(model: Model, rule: str, first: int, count: int) -> list[int] | None:
    """Labels by sample number: every class equally often, one class, or none."""
    classes = model.config.labels
    if classes is None or rule == "none":
        return None
    if rule == "uniform":
        return [number % classes for number in range(first, first + count)]
    return [int(rule)] * count


def part_size(length: int) -> int:
    """Samples in a part for sequences of `length`; whole groups of 50, so that group figures fit."""
    return max(50, min(500, SYMBOLS // length // 50 * 50)) if length < 2000 else 50


class Runner:
    """One evaluation under way."""

    def __init__(
        self,
        plan: Plan,
        entrants: Sequence[Entrant],
        scorers: Sequence[Scorer],
        n: int,
        seed: int,
        work: Path,
        advance: Callable[[int], None] = lambda count: None,
        gallery: Path | None = None,
    ) -> None:
        self.plan, self.scorers, self.n, self.seed, self.work = plan, scorers, n, seed, work
        self.gallery = gallery
        self.entrants = {entrant.row: entrant for entrant in entrants}
        self.advance = advance
        self.fresh = 0

    def cells(self) -> list[CellPlan]:
        """The plan's cells for which there is a model."""
        return [cell for cell in self.plan.cells if cell.row in self.entrants]

    def run(self, cell: CellPlan) -> Cell:
        """Sample, score and summarise one cell."""
        start = time.monotonic()
        entrant = self.entrants[cell.row]
        model, options = entrant.model, cell.sampling()
        named = self._settings(model, cell, options)
        length = model.denoiser.length
        facts: dict[str, Any] = {
            "model": entrant.digest,
            "settings": named,
            "seed": self.seed,
            "labels": self.plan.labels,
            "size": part_size(length),
            "version": __version__,
        }
        if options.get("hybrid"):
            facts["teacher"] = self._teacher().digest
        folder = self.work / f"{cell.row}-{cell.steps}-{identity(**facts)}".replace("/", "_")
        samples = Parts(folder, self.n, part_size(length))
        self.fresh += samples.fill(
            lambda first, count: self._sample(model, cell, options, first, count), self.advance
        )
        figures = {}
        for scorer in self.scorers:
            figures.update(scorer.summarise(self._scores(scorer, model, samples)))
        return Cell(
            row=cell.row,
            column=cell.column,
            steps=cell.steps,
            n=self.n,
            seed=self.seed,
            settings=named,
            labels=self._labels(model),
            seconds=round(float(samples.column("seconds").sum()) + time.monotonic() - start, 3),
            figures=figures,
            paper=cell.paper,
            **self._shown(model, cell, samples),
        )

    def _shown(self, model: Model, cell: CellPlan, samples: Parts) -> dict[str, Any]:
        """The first few samples: text as it is, images as a grid in the gallery."""
        first, count = next(samples.ranges())
        decoded = model.decode(torch.from_numpy(samples.read(first, count)["x"][:SHOWN].astype(np.int64)))
        if isinstance(decoded, list):
            return {"samples": decoded[:SHOWN_TEXTS]}
        if self.gallery is None:
            return {}
        name = re.sub(r"[^\w.+-]+", "-", f"{cell.row}-{cell.column}") + ".png"
        save_grid(decoded, self.gallery / name, columns=5)
        return {"picture": f"{self.gallery.name}/{name}"}

    def _settings(self, model: Model, cell: CellPlan, options: Mapping[str, Any]) -> dict[str, Any]:
        labelled = labels_of(model, self.plan.labels, 0, 1) is not None
        named = resolve(model.config.sampling, model.denoiser.length, cell.steps, labelled, **options).named()
        return {key: value for key, value in named.items() if value is not None}

    def _labels(self, model: Model) -> str:
        if labels_of(model, self.plan.labels, 0, 1) is None:
            return "unconditional"
        return "every class equally often" if self.plan.labels == "uniform" else f"class {self.plan.labels}"

    def _teacher(self) -> Entrant:
        if "teacher" not in self.entrants:
            raise UserError("A hybrid cell needs the teacher.", "Name it with --teacher.")
        return self.entrants["teacher"]

    def _sample(
        self, model: Model, cell: CellPlan, options: dict[str, Any], first: int, count: int
    ) -> Scores:
        start = time.monotonic()
        more: dict[str, Any] = {"teacher": self._teacher().model.denoiser} if options.get("hybrid") else {}
        label = labels_of(model, self.plan.labels, first, count)
        x = model.sample(count, steps=cell.steps, seed=self.seed, label=label, first=first, **options, **more)
        return {"x": _narrow(x, model), "seconds": np.array([time.monotonic() - start])}

    def _scores(self, scorer: Scorer, model: Model, samples: Parts) -> Parts:
        """The scorer's parts beside the samples' own, computed where missing."""
        tag = identity(**scorer.instrument().model_dump())
        scores = Parts(samples.folder / tag, self.n, samples.size)

        def compute(first: int, count: int) -> Scores:
            x = torch.from_numpy(samples.read(first, count)["x"].astype(np.int64))
            return scorer.score(x, model.decode(x))

        scores.fill(compute)
        return scores


def _narrow(x: Tensor, model: Model) -> np.ndarray:
    """Ids in the smallest integers that hold them."""
    symbols = model.denoiser.symbols
    return x.numpy().astype(np.uint8 if symbols <= 256 else np.uint16 if symbols <= 65_536 else np.int64)


def evaluate(
    plan: Plan,
    entrants: Sequence[Entrant],
    scorers: Sequence[Scorer],
    n: int | None = None,
    seed: int = 0,
    work: Path | None = None,
    advance: Callable[[int], None] = lambda count: None,
    world: str = "",
    gallery: Path | None = None,
) -> Results:
    """All cells of a plan that have a model. `work` keeps the parts: the same call goes on after a stop."""
    start = time.monotonic()
    folder = Path(tempfile.mkdtemp(prefix="di4c-")) if work is None else work
    try:
        runner = Runner(plan, entrants, scorers, n or plan.n, seed, folder, advance, gallery)
        cells = [runner.run(cell) for cell in runner.cells()]
    finally:
        if work is None:
            shutil.rmtree(folder, ignore_errors=True)
    instruments = [scorer.instrument() for scorer in scorers]
    return Results(
        protocol=plan.name,
        title=plan.title,
        world=world,
        created=datetime.now(timezone.utc).isoformat(timespec="seconds"),
        seconds=round(time.monotonic() - start, 3),
        device=device_name(entrants),
        threads=torch.get_num_threads(),
        packages=packages(),
        models=[entrant.entry() for entrant in entrants],
        instruments=instruments,
        cells=cells,
        notes=[*plan.notes, *_notes(instruments, runner.n)],
    )


def _notes(instruments: Sequence[Instrument], n: int) -> list[str]:
    """What a reader of the figures must know."""
    out = []
    for instrument in instruments:
        if instrument.kind == "features" and instrument.reference_n < n:
            out.append(
                f"The reference ({instrument.reference}) has {instrument.reference_n} images, fewer than"
                f" the {n} samples: its noise is in every distance, equally for all models."
            )
    return out


def device_name(entrants: Sequence[Entrant]) -> str:
    """Where the models ran."""
    device = entrants[0].model.denoiser.device if entrants else torch.device("cpu")
    name = torch.cuda.get_device_name(device) if device.type == "cuda" else platform.machine()
    return f"{device.type} ({name})"


def packages() -> dict[str, str]:
    """Versions of what the figures depend on."""
    out = {"di4c": __version__, "python": platform.python_version()}
    for name in PACKAGES:
        try:
            out[name] = importlib.metadata.version(name)
        except importlib.metadata.PackageNotFoundError:
            continue
    return out
