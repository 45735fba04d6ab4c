"""Run a protocol: sample every cell in parts, score the parts, and collect the figures in one result."""

from __future__ import annotations

import importlib.metadata
import platform
import re
import shutil
import tempfile
import time
from collections.abc import Callable, Sequence
from datetime import datetime, timezone
from pathlib import Path
from typing import Any

import numpy as np
import torch

from di4c_cli import __version__
from di4c_cli.codec.grid import save_grid
from di4c_cli.evaluation.models import EvaluatedModel
from di4c_cli.evaluation.parts import ScoreParts, Scores, identity
from di4c_cli.evaluation.protocol import CellSpec, EvaluationProtocol
from di4c_cli.evaluation.results import Cell, Figure, Instrument, Results
from di4c_cli.evaluation.sampling import CellSampling, Continuations
from di4c_cli.evaluation.scorers import Scorer
from di4c_cli.evaluation.steps_saved import steps_saved
from di4c_cli.metric.interval import of_repeats
from di4c_cli.model import Model
from di4c_cli.tasks.base import ToyTask

PACKAGES = ("torch", "numpy", "tokenizers", "safetensors", "transformers", "nltk")
SHOWN_IMAGES, SHOWN_TEXTS = 25, 6


def _no_progress(count: int) -> None:
    """No progress bar."""


class Runner:
    """The cells of one evaluation, one after the other."""

    def __init__(
        self,
        protocol: EvaluationProtocol,
        models: Sequence[EvaluatedModel],
        scorers: Sequence[Scorer],
        n: int,
        seed: int,
        work: Path,
        advance: Callable[[int], None] = _no_progress,
        gallery: Path | None = None,
        prompts: Continuations | None = None,
    ) -> None:
        self.protocol, self.scorers, self.n, self.seed, self.work = protocol, scorers, n, seed, work
        self.models = {one.row: one for one in models}
        self.advance, self.gallery, self.prompts = advance, gallery, prompts

    def run(self, cell: CellSpec) -> Cell:
        """Sample, score and summarise one cell; of several tries the best by the main figure."""
        tried = [self._repeat(one) for one in cell.tries()]
        if len(tried) == 1:
            return tried[0]
        main = self.scorers[0].main
        sign = -1 if tried[0].figures[main].better == "higher" else 1
        return min(tried, key=lambda one: sign * one.figures[main].value)

    def _repeat(self, cell: CellSpec) -> Cell:
        """The cell with each of the protocol's seeds; several repeats become one cell."""
        return merge_repeats([self._measure(cell, self.seed + k) for k in range(self.protocol.repeats)])

    def _measure(self, cell: CellSpec, seed: int) -> Cell:
        evaluated = self.models[model_row(cell.row)]
        sampling = CellSampling(
            evaluated, cell, seed, self.protocol.labels, self.prompts, self.models.get("teacher")
        )
        samples = ScoreParts(self.work / sampling.key, self.n, sampling.part)
        samples.fill(sampling.draw, self.advance)
        start = time.monotonic()  # the parts hold the time of sampling, perhaps of an earlier evaluation
        figures = {}
        for scorer in self.scorers:
            scorer.prepare(sampling)
            figures.update(scorer.summarise(self._scores(scorer, sampling.model, samples)))
        seconds = float(samples.column("seconds").sum()) + time.monotonic() - start
        return Cell(
            row=cell.row,
            column=cell.column,
            steps=cell.steps,
            n=self.n,
            seed=seed,
            settings=sampling.settings,
            labels=sampling.label_text,
            seconds=round(seconds, 3),
            figures=figures,
            paper=cell.paper,
            **(self._shown(sampling.model, cell, samples) if seed == self.seed else {}),
        )

    def _scores(self, scorer: Scorer, model: Model, samples: ScoreParts) -> ScoreParts:
        """The scorer's parts beside the samples' own, computed where missing."""
        tag = identity(**scorer.instrument().model_dump())
        scores = ScoreParts(samples.folder / tag, self.n, samples.size)

        def compute(first: int, count: int) -> Scores:
            x = torch.from_numpy(samples.read(first, count)["x"].astype(np.int64))
            return scorer.score(x, model.decode(x))

        scores.fill(compute)
        return scores

    def _shown(self, model: Model, cell: CellSpec, samples: ScoreParts) -> dict[str, Any]:
        """The first few samples: texts in the result, images as a grid in the gallery."""
        first, count = next(samples.ranges())
        x = torch.from_numpy(samples.read(first, count)["x"][:SHOWN_IMAGES].astype(np.int64))
        decoded = model.decode(x)
        if isinstance(decoded, list):
            return {"samples": decoded[:SHOWN_TEXTS]}
        if self.gallery is None:
            return {}
        name = re.sub(r"[^\w.+-]+", "-", f"{cell.row}-{cell.column}") + ".png"
        save_grid(decoded, self.gallery / name, columns=5)
        return {"picture": f"{self.gallery.name}/{name}"}


def merge_repeats(cells: Sequence[Cell]) -> Cell:
    """One cell of several repeats: every figure is the mean over them, with Student's interval."""
    first = cells[0]
    if len(cells) == 1:
        return first
    figures = {}
    for name, figure in first.figures.items():
        if all(name in cell.figures for cell in cells):
            values = [cell.figures[name].value for cell in cells]
            mean = of_repeats(values)
            figures[name] = Figure(
                value=mean.value,
                se=mean.se,
                low=mean.low,
                high=mean.high,
                interval="repeats",
                better=figure.better,
                unit=figure.unit,
                note=figure.note,
                repeats=values,
            )
    seconds = round(sum(cell.seconds for cell in cells), 3)
    return first.model_copy(update={"figures": figures, "repeats": len(cells), "seconds": seconds})


def model_row(row: str) -> str:
    """The row of the model that a row samples: the hybrid row samples the student, then the teacher."""
    return "student" if row == "hybrid" else row


def runnable(protocol: EvaluationProtocol, models: Sequence[EvaluatedModel]) -> list[CellSpec]:
    """The protocol's cells that have a model."""
    rows = {one.row for one in models}
    return [cell for cell in protocol.cells if model_row(cell.row) in rows]


def evaluate(
    protocol: EvaluationProtocol,
    models: Sequence[EvaluatedModel],
    scorers: Sequence[Scorer],
    n: int | None = None,
    seed: int = 0,
    work: Path | None = None,
    advance: Callable[[int], None] = _no_progress,
    task: ToyTask | None = None,
    gallery: Path | None = None,
    prompts: Continuations | None = None,
) -> Results:
    """All cells of a protocol that have a model. `work` keeps the parts, so the same call resumes."""
    start = time.monotonic()
    folder = Path(tempfile.mkdtemp(prefix="di4c-")) if work is None else work
    try:
        runner = Runner(protocol, models, scorers, n or protocol.n, seed, folder, advance, gallery, prompts)
        cells = [runner.run(cell) for cell in runnable(protocol, models)]
    finally:
        if work is None:
            shutil.rmtree(folder, ignore_errors=True)
    instruments = [scorer.instrument() for scorer in scorers]
    main = scorers[0].main if scorers else ""
    results = Results(
        protocol=protocol.name,
        title=protocol.title,
        task=task.name if task else "",
        created=datetime.now(timezone.utc).isoformat(timespec="seconds"),
        seconds=round(time.monotonic() - start, 3),
        device=device_name(models),
        threads=torch.get_num_threads(),
        packages=packages(),
        models=[one.entry() for one in models],
        instruments=instruments,
        cells=cells,
        main=main,
        diversity=task.diversity if task else "",
        notes=[*protocol.notes, *_notes(protocol, instruments, runner.n, task)],
    )
    return results.model_copy(update={"steps_saved": steps_saved(results)})


def _notes(
    protocol: EvaluationProtocol, instruments: Sequence[Instrument], n: int, task: ToyTask | None
) -> list[str]:
    """Conditions of the figures."""
    out = []
    if n < protocol.n:
        out.append(f"{n} samples in each cell instead of the protocol's {protocol.n}.")
    if task and any(cell.paper for cell in protocol.cells):
        out.append(f"The paper's figures are of its own models and features, not of {task.name}.")
    for instrument in instruments:
        if "real_frechet" in instrument.detail:
            real, count = instrument.detail["real_frechet"], instrument.detail["real_n"]
            out.append(f"{count} real training images score a Fréchet distance of {real:.4g}.")
        if "held_out_bits_per_char" in instrument.detail:
            out.append(
                f"Real held-out text has {instrument.detail['held_out_bits_per_char']:.4g} bits a character."
            )
        if instrument.kind == "features" and instrument.reference_n < n:
            out.append(
                f"The reference ({instrument.reference}) has {instrument.reference_n} images, fewer than"
                f" the {n} samples: its noise is in every distance, equally for all models."
            )
    return out


def device_name(models: Sequence[EvaluatedModel]) -> str:
    """The device the models ran on."""
    device = models[0].model.denoiser.device if models else torch.device("cpu")
    name = torch.cuda.get_device_name(device) if device.type == "cuda" else platform.machine()
    return f"{device.type} ({name})"


def packages() -> dict[str, str]:
    """Versions of the packages the figures depend on."""
    out = {"di4c": __version__, "python": platform.python_version()}
    for name in PACKAGES:
        try:
            out[name] = importlib.metadata.version(name)
        except importlib.metadata.PackageNotFoundError:
            continue
    return out
