"""Evaluation of samples from a file of texts or images, by the scorers that measure models."""

from __future__ import annotations

import tempfile
import time
from pathlib import Path
from typing import Any

import torch

from di4c_cli.errors import UserError
from di4c_cli.evaluation.config import ScorerOptions
from di4c_cli.evaluation.parts import ScoreParts, Scores
from di4c_cli.evaluation.results import Cell, Figure, Results
from di4c_cli.evaluation.run import SHOWN_TEXTS, new_results
from di4c_cli.evaluation.sample_files import IMAGES_PER_BATCH, image_batches, is_text, read_texts
from di4c_cli.evaluation.scorers import Scorer, ScorerContext, make_scorers
from di4c_cli.tasks.base import ImageTask, ToyTask
from di4c_cli.tasks.registry import TASKS


def evaluate_file(path: Path, options: ScorerOptions, n: int | None, out: Path) -> Results:
    """Figures of the first `n` samples of a file."""
    start = time.monotonic()
    if not path.exists():
        raise UserError(f"There is no sample file {path}.", "Check the path.")
    text = is_text(path)
    batches = _texts(path, n) if text else _images(path, n)
    count = sum(map(len, batches))
    size: tuple[int, ...] = () if text else batches[0].shape[1:]
    context = ScorerContext(None, _task_of_images(size), count, out, options, image_size=size)
    (scorer,) = make_scorers(["judge" if text else "features"], context)
    with tempfile.TemporaryDirectory(prefix="di4c-") as folder:
        figures = _figures(scorer, batches, ScoreParts(Path(folder), count, len(batches[0])))
    cell = Cell(
        row="samples",
        column=path.name,
        n=count,
        seed=0,
        seconds=round(time.monotonic() - start, 3),
        figures=figures,
        samples=batches[0][:SHOWN_TEXTS] if text else [],
    )
    kind = "file-text" if text else "file-images"
    title, instruments = f"Samples of {path.name}", [scorer.instrument()]
    return new_results(kind, title, start, options.device, [cell], instruments, scorer.main)


def _texts(path: Path, n: int | None) -> list[Any]:
    texts = read_texts(path)[:n]
    return [texts[start : start + IMAGES_PER_BATCH] for start in range(0, len(texts), IMAGES_PER_BATCH)]


def _images(path: Path, n: int | None) -> list[Any]:
    """Batches of up to `n` images; images are small beside their features, so all of them stay in memory."""
    out: list[Any] = []
    left = n
    for batch in image_batches(path):
        out.append(batch[:left])
        left = None if left is None else left - len(out[-1])
        if left == 0:
            break
    return out


def _task_of_images(size: tuple[int, ...]) -> ToyTask | None:
    """The first toy task whose images have this size: its classifier takes them."""
    tasks = (task for task in TASKS.values() if isinstance(task, ImageTask))
    return next((task for task in tasks if size == (task.image_side, task.image_side)), None)


def _figures(scorer: Scorer, batches: list[Any], parts: ScoreParts) -> dict[str, Figure]:
    """Every batch is a part; a file has no ids, so `x` is empty."""
    at = iter(batches)

    def compute(first: int, count: int) -> Scores:
        return scorer.score(torch.empty(count, 0, dtype=torch.long), next(at))

    parts.fill(compute)
    return scorer.summarise(parts)
