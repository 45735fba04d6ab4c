"""Samples that somebody else made: a file of texts or images, measured like our own."""

from __future__ import annotations

import tempfile
import time
from collections.abc import Iterator
from datetime import datetime, timezone
from pathlib import Path
from typing import Any

import numpy as np
import torch

from di4c_cli.errors import UserError
from di4c_cli.evaluation.images import ImageScorer
from di4c_cli.evaluation.instruments import JUDGE, Tools, features, reference
from di4c_cli.evaluation.judged import JudgeScorer
from di4c_cli.evaluation.parts import Parts
from di4c_cli.evaluation.result import Cell, Results
from di4c_cli.evaluation.run import packages
from di4c_cli.evaluation.scorer import Scorer
from di4c_cli.evaluation.stored import BATCH, image_batches, is_text, read_texts
from di4c_cli.evaluation.world import CLASSIFIERS
from di4c_cli.metric.judge import load_judge


def evaluate_file(path: Path, tools: Tools, n: int | None, out: Path) -> tuple[Results, str]:
    """Results of the first `n` samples of a file, and the headline figure's name."""
    start = time.monotonic()
    if not path.exists():
        raise UserError(f"There is no sample file {path}.", "Check the path.")
    batches = _texts(path, n) if is_text(path) else _images(path, n)
    scorer = _text_scorer(tools) if is_text(path) else _image_scorer(path, tools, sum(map(len, batches)), out)
    with tempfile.TemporaryDirectory(prefix="di4c-") as folder:
        figures, count = _score(scorer, batches, Path(folder))
    cell = Cell(
        row="samples",
        column=path.name,
        n=count,
        seed=0,
        seconds=round(time.monotonic() - start, 3),
        figures=figures,
        samples=batches[0][:6] if is_text(path) else [],
    )
    results = Results(
        protocol=f"file-{'text' if is_text(path) else 'images'}",
        title=f"Samples of {path.name}",
        created=datetime.now(timezone.utc).isoformat(timespec="seconds"),
        seconds=cell.seconds,
        device=tools.device,
        threads=torch.get_num_threads(),
        packages=packages(),
        models=[],
        instruments=[scorer.instrument()],
        cells=[cell],
    )
    return results, scorer.main


def _texts(path: Path, n: int | None) -> list[Any]:
    texts = read_texts(path)[:n]
    return [texts[start : start + BATCH] for start in range(0, len(texts), BATCH)]


def _images(path: Path, n: int | None) -> list[Any]:
    """Batches up to `n` images; pictures are small next to their features, so they may stay in memory."""
    out: list[Any] = []
    left = n
    for batch in image_batches(path):
        out.append(batch[:left])
        left = None if left is None else left - len(out[-1])
        if left == 0:
            break
    return out


def _text_scorer(tools: Tools) -> Scorer:
    return JudgeScorer(load_judge(tools.judge or JUDGE, tools.device), direct=False)


def _image_scorer(path: Path, tools: Tools, n: int, out: Path) -> Scorer:
    """The named network and reference, else those of the embedded world with images of this size."""
    size = next(image_batches(path)).shape[1:]
    world = next((name for name, (_, side) in CLASSIFIERS.items() if size == (side, side)), "")
    network = features(tools, world)
    return ImageScorer(network, reference(tools, network, world, n, out, size))


def _score(scorer: Scorer, batches: list[Any], folder: Path) -> tuple[dict[str, Any], int]:
    """Every batch is a part; `x` is empty, since files hold no ids."""
    count, size = sum(map(len, batches)), len(batches[0])
    parts = Parts(folder, count, size)
    at: Iterator[Any] = iter(batches)

    def compute(first: int, length: int) -> dict[str, np.ndarray]:
        return scorer.score(torch.empty(length, 0, dtype=torch.long), next(at))

    parts.fill(compute)
    return scorer.summarise(parts), count
