"""Run a protocol: sample every cell in parts, score the parts, and collect the figures in one result."""

from __future__ import annotations

import importlib.metadata
import platform
import re
import time
from collections.abc import Callable, Sequence
from contextlib import suppress
from dataclasses import dataclass
from datetime import datetime, timezone
from pathlib import Path
from typing import Any

import torch

from di4c_cli import __version__
from di4c_cli.codec.grid import save_grid
from di4c_cli.evaluation.comparison import write_comparison
from di4c_cli.evaluation.headline import headlines
from di4c_cli.evaluation.measurement import Measurement, measure
from di4c_cli.evaluation.models import EvaluatedModel
from di4c_cli.evaluation.prompts import Continuations
from di4c_cli.evaluation.protocol import CellSpec, EvaluationProtocol
from di4c_cli.evaluation.results import Cell, Figure, Instrument, Results, best_cell
from di4c_cli.evaluation.sampling import CellSampling
from di4c_cli.evaluation.scorers import Scorer
from di4c_cli.evaluation.steps_saved import steps_saved
from di4c_cli.metric.interval import of_repeats
from di4c_cli.process_group import ALONE, ProcessGroup
from di4c_cli.report.summary import sentences
from di4c_cli.tasks.base import ToyTask

PACKAGES = ("torch", "numpy", "tokenizers", "safetensors", "transformers", "nltk")
SHOWN_IMAGES, SHOWN_TEXTS = 25, 6


@dataclass
class Evaluation:
    """The cells of a protocol that have a model.

    `out` keeps pictures of samples, and the parts, so a second run resumes the first.
    """

    protocol: EvaluationProtocol
    models: Sequence[EvaluatedModel]
    scorers: Sequence[Scorer]
    n: int
    seed: int
    out: Path
    task: ToyTask | None = None
    prompts: Continuations | None = None

    @property
    def cells(self) -> list[CellSpec]:
        """The protocol's cells that have a model."""
        rows = {one.row for one in self.models}
        return [cell for cell in self.protocol.cells if cell.model_row in rows]

    @property
    def total(self) -> int:
        """Samples to draw."""
        return self.n * sum(len(cell.tries()) for cell in self.cells) * self.protocol.repeats

    def announcement(self) -> str:
        """One line about the evaluation."""
        columns = dict.fromkeys(cell.column for cell in self.cells)
        shown = ", ".join(columns) if len(columns) <= 8 else f"{len(columns)} ways of sampling"
        judge = f"measured by {self.scorers[0].instrument().name}" if self.scorers else "samples only"
        names = " and ".join(f"{one.row} {one.model.name}" for one in self.models)
        repeats = f", {self.protocol.repeats} repeats" if self.protocol.repeats > 1 else ""
        return f"{self.protocol.name}: {names}; {shown}; n = {self.n}, seed {self.seed}{repeats}; {judge}."

    def run(self, advance: Callable[[int], None] = lambda count: None, group: ProcessGroup = ALONE) -> Results:
        """Sample and measure all cells; the processes of a group divide the work, and the main one saves pictures."""
        start = time.monotonic()
        planned = [[self._repeats(one) for one in cell.tries()] for cell in self.cells]
        measure([one for tries in planned for repeats in tries for one in repeats], advance, group)
        cells = [self._best(tries, group.main) for tries in planned]
        device = self.models[0].model.denoiser.device
        results = new_results(self.protocol.name, self.protocol.title, start, device, cells, self.scorers)
        results.task, results.diversity = (self.task.name, self.task.diversity) if self.task else ("", "")
        results.models = [one.entry() for one in self.models]
        results.notes = [*self.protocol.notes, *_notes(self.protocol, results.instruments, self.n, self.task)]
        results.steps_saved = steps_saved(results)
        results.headline, results.ratios = headlines(results), sentences(results)
        if group.main:
            results.comparison = write_comparison(results, [tries[0][0] for tries in planned], self.task, self.out)
        return results

    def _repeats(self, cell: CellSpec) -> list[Measurement]:
        """The measurements of one cell, one for each seed."""
        rows = {one.row: one for one in self.models}
        evaluated, teacher = rows[cell.model_row], rows.get("teacher")
        return [
            Measurement(cell, sampling, self.scorers, self.n, self.out / "parts")
            for seed in range(self.seed, self.seed + self.protocol.repeats)
            for sampling in [CellSampling(evaluated, cell, seed, self.protocol.labels, self.prompts, teacher)]
        ]

    def _best(self, tries: Sequence[Sequence[Measurement]], pictures: bool) -> Cell:
        """One cell with all its repeats; of several tries the best by the main figure."""
        tried = [merge_repeats([self._cell(one, pictures) for one in repeats]) for repeats in tries]
        return tried[0] if len(tried) == 1 else best_cell(tried, self.scorers[0].main)

    def _cell(self, measured: Measurement, pictures: bool) -> Cell:
        """The result of one measurement."""
        cell, sampling = measured.cell, measured.sampling
        return Cell(
            row=cell.row,
            column=cell.column,
            steps=cell.steps,
            n=self.n,
            seed=sampling.seed,
            settings=sampling.settings,
            labels=sampling.label_text,
            seconds=round(measured.seconds, 3),
            tokens_per_pass=measured.tokens_per_pass,
            figures=measured.figures or {},
            paper=cell.paper,
            **(self._shown(measured) if pictures and sampling.seed == self.seed else {}),
        )

    def _shown(self, measured: Measurement) -> dict[str, Any]:
        """The first few samples: texts in the result, images as a grid in the gallery."""
        cell = measured.cell
        decoded = measured.sampling.model.decode(measured.ids(*next(measured.samples.ranges()))[:SHOWN_IMAGES])
        if isinstance(decoded, list):
            return {"samples": decoded[:SHOWN_TEXTS]}
        name = re.sub(r"[^\w.+-]+", "-", f"{cell.row}-{cell.column}") + ".png"
        save_grid(decoded, self.out / "samples" / name, columns=5)
        return {"picture": f"samples/{name}"}


def merge_repeats(cells: Sequence[Cell]) -> Cell:
    """One cell of several repeats: every figure is the mean over them, with Student's interval."""
    first = cells[0]
    if len(cells) == 1:
        return first
    figures = {}
    for name, figure in first.figures.items():
        if all(name in cell.figures for cell in cells):
            values = [cell.figures[name].value for cell in cells]
            shared = {"better": figure.better, "unit": figure.unit, "note": figure.note}
            figures[name] = Figure(**vars(of_repeats(values)), **shared, repeats=values)
    seconds = round(sum(cell.seconds for cell in cells), 3)
    return first.model_copy(update={"figures": figures, "repeats": len(cells), "seconds": seconds})


def new_results(
    protocol: str, title: str, start: float, device: torch.device, cells: list[Cell], scorers: Sequence[Scorer]
) -> Results:
    """A result with the time since `start`, the device, the versions and the threads filled in."""
    name = torch.cuda.get_device_name(device) if device.type == "cuda" else platform.machine()
    return Results(
        protocol=protocol,
        title=title,
        created=datetime.now(timezone.utc).isoformat(timespec="seconds"),
        seconds=round(time.monotonic() - start, 3),
        device=f"{device.type} ({name})",
        threads=torch.get_num_threads(),
        packages=packages(),
        models=[],
        instruments=[scorer.instrument() for scorer in scorers],
        cells=cells,
        main=scorers[0].main if scorers else "",
    )


def _notes(protocol: EvaluationProtocol, instruments: Sequence[Instrument], n: int, task: ToyTask | None) -> list[str]:
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
            out.append(f"Real held-out text has {instrument.detail['held_out_bits_per_char']:.4g} bits a character.")
        if instrument.kind == "features" and instrument.reference_n < n:
            out.append(
                f"The reference ({instrument.reference}) has {instrument.reference_n} images, fewer than"
                f" the {n} samples: its noise is in every distance, equally for all models."
            )
    return out


def packages() -> dict[str, str]:
    """Versions of the packages the figures depend on."""
    out = {"di4c": __version__, "python": platform.python_version()}
    for name in PACKAGES:
        with suppress(importlib.metadata.PackageNotFoundError):
            out[name] = importlib.metadata.version(name)
    return out
