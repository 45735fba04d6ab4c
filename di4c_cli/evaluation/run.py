"""Run a plan: sample every cell in parts, score the parts, and put the figures into one result."""

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
from di4c_cli.evaluation.parts import Parts, Scores, identity
from di4c_cli.evaluation.plan import CellPlan, Plan
from di4c_cli.evaluation.result import Cell, Instrument, Results
from di4c_cli.evaluation.sampling import CellSampling, Continuations, Entrant
from di4c_cli.evaluation.scorer import Scorer
from di4c_cli.model import Model

PACKAGES = ("torch", "numpy", "tokenizers", "safetensors", "transformers", "nltk")
SHOWN, SHOWN_TEXTS = 25, 6


def _silent(count: int) -> None:
    """Nobody watches."""


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
        advance: Callable[[int], None] = _silent,
        gallery: Path | None = None,
        prompts: Continuations | None = None,
    ) -> None:
        self.plan, self.scorers, self.n, self.seed, self.work = plan, scorers, n, seed, work
        self.entrants = {entrant.row: entrant for entrant in entrants}
        self.advance, self.gallery, self.prompts = advance, gallery, prompts

    def run(self, cell: CellPlan) -> Cell:
        """Sample, score and summarise one cell; of several tries the best by the headline figure."""
        tried = [self._try(one) for one in cell.tries()]
        if len(tried) == 1:
            return tried[0]
        main = self.scorers[0].main
        sign = -1 if tried[0].figures[main].better == "higher" else 1
        return min(tried, key=lambda one: sign * one.figures[main].value)

    def _try(self, cell: CellPlan) -> Cell:
        entrant = self.entrants[model_row(cell.row)]
        sampling = CellSampling(
            entrant, cell, self.seed, self.plan.labels, self.prompts, self.entrants.get("teacher")
        )
        samples = Parts(self.work / sampling.key, self.n, sampling.part)
        samples.fill(sampling.draw, self.advance)
        start = time.monotonic()  # the parts know how long sampling took, perhaps in an earlier evaluation
        figures = {}
        for scorer in self.scorers:
            scorer.prepare(sampling)
            figures.update(scorer.summarise(self._scores(scorer, sampling.model, samples)))
        return Cell(
            row=cell.row,
            column=cell.column,
            steps=cell.steps,
            n=self.n,
            seed=self.seed,
            settings=sampling.settings,
            labels=sampling.label_text,
            seconds=round(self._seconds(samples) + time.monotonic() - start, 3),
            figures=figures,
            paper=cell.paper,
            **self._shown(sampling.model, cell, samples),
        )

    def _seconds(self, samples: Parts) -> float:
        return float(samples.column("seconds").sum())

    def _scores(self, scorer: Scorer, model: Model, samples: Parts) -> Parts:
        """The scorer's parts beside the samples' own, computed where missing."""
        tag = identity(**scorer.instrument().model_dump())
        scores = Parts(samples.folder / tag, self.n, samples.size)

        def compute(first: int, count: int) -> Scores:
            x = torch.from_numpy(samples.read(first, count)["x"].astype(np.int64))
            return scorer.score(x, model.decode(x))

        scores.fill(compute)
        return scores

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


def model_row(row: str) -> str:
    """Whose weights a row uses: the hybrid is the student's row with the teacher's help."""
    return "student" if row == "hybrid" else row


def runnable(plan: Plan, entrants: Sequence[Entrant]) -> list[CellPlan]:
    """The plan's cells for which there is a model."""
    rows = {entrant.row for entrant in entrants}
    return [cell for cell in plan.cells if model_row(cell.row) in rows]


def evaluate(
    plan: Plan,
    entrants: Sequence[Entrant],
    scorers: Sequence[Scorer],
    n: int | None = None,
    seed: int = 0,
    work: Path | None = None,
    advance: Callable[[int], None] = _silent,
    world: str = "",
    gallery: Path | None = None,
    prompts: Continuations | None = None,
) -> Results:
    """All cells of a plan that have a model. `work` keeps the parts: the same call goes on after a stop."""
    start = time.monotonic()
    folder = Path(tempfile.mkdtemp(prefix="di4c-")) if work is None else work
    try:
        runner = Runner(plan, entrants, scorers, n or plan.n, seed, folder, advance, gallery, prompts)
        cells = [runner.run(cell) for cell in runnable(plan, entrants)]
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
        notes=[*plan.notes, *_notes(plan, instruments, runner.n, world)],
    )


def _notes(plan: Plan, instruments: Sequence[Instrument], n: int, world: str) -> list[str]:
    """What a reader of the figures must know."""
    out = []
    if n < plan.n:
        out.append(f"{n} samples a cell instead of the protocol's {plan.n}.")
    if world and any(cell.paper for cell in plan.cells):
        out.append(f"The paper's figures are of its own models and features, not of {world}.")
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
