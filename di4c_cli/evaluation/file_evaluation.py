"""Evaluation of samples from a file of texts or images, by the scorers that measure models."""

from __future__ import annotations

import tempfile
import time
from itertools import chain, islice
from pathlib import Path
from typing import Any

import numpy as np
import torch

from di4c_cli.evaluation.config import ScorerOptions
from di4c_cli.evaluation.parts import ScoreParts, Scores
from di4c_cli.evaluation.results import Cell, Figure, Results
from di4c_cli.evaluation.run import SHOWN_TEXTS, new_results
from di4c_cli.evaluation.sample_files import IMAGES_PER_BATCH, image_batches, is_text, read_texts
from di4c_cli.evaluation.scorers import Scorer, ScorerContext, make_scorers
from di4c_cli.tasks.base import ImageTask, ToyTask
from di4c_cli.tasks.registry import TASKS


def evaluate_file(path: Path, options: ScorerOptions, n: int | None, out: Path) -> Results:
    """Figures of the first `n` samples of a file; images are small beside their features and stay in memory."""
    start = time.monotonic()
    text = is_text(path)
    samples: Any = read_texts(path)[:n] if text else np.stack([*islice(chain.from_iterable(image_batches(path)), n)])
    size: tuple[int, ...] = () if text else samples.shape[1:]
    if not text:  # files are often sorted by class, but splits and subsets of samples must be alike
        samples = np.random.default_rng(0).permutation(samples)
    context = ScorerContext(None, _task_of_images(size), len(samples), out, options, image_size=size)
    (scorer,) = make_scorers(["judge" if text else "features"], context)
    figures = _figures(scorer, samples)
    cell = Cell(
        row="samples",
        column=path.name,
        n=len(samples),
        seed=0,
        seconds=round(time.monotonic() - start, 3),
        figures=figures,
        samples=samples[:SHOWN_TEXTS] if text else [],
    )
    kind = "file-text" if text else "file-images"
    return new_results(kind, f"Samples of {path.name}", start, torch.device(options.device), [cell], [scorer])


def _task_of_images(size: tuple[int, ...]) -> ToyTask | None:
    """The first toy task whose images have this size: its classifier takes them."""
    tasks = (task for task in TASKS.values() if isinstance(task, ImageTask))
    return next((task for task in tasks if size == (task.image_side, task.image_side)), None)


def _figures(scorer: Scorer, samples: Any) -> dict[str, Figure]:
    """Figures of decoded samples; a file has no ids, so `x` is empty."""

    def compute(first: int, count: int) -> Scores:
        return scorer.score(torch.empty(count, 0, dtype=torch.long), samples[first : first + count])

    with tempfile.TemporaryDirectory(prefix="di4c-") as folder:
        parts = ScoreParts(Path(folder), len(samples), IMAGES_PER_BATCH)
        parts.fill(compute)
        return scorer.summarise(parts)
