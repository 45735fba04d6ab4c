"""Evaluation of samples from a file of texts, token ids or images, by the scorers that measure models."""

from __future__ import annotations

import re
import tempfile
import time
from itertools import chain, islice
from pathlib import Path
from typing import Any

import numpy as np
import torch

from di4c_cli.errors import UserError
from di4c_cli.evaluation.config import ScorerOptions
from di4c_cli.evaluation.parts import ScoreParts, Scores
from di4c_cli.evaluation.results import Cell, Figure, Results
from di4c_cli.evaluation.run import SHOWN_TEXTS, new_results
from di4c_cli.evaluation.sample_files import IMAGES_PER_BATCH, image_batches, is_text, read_array, read_texts
from di4c_cli.evaluation.scorers import Scorer, ScorerContext, make_scorers
from di4c_cli.evaluation.scorers.text import JudgeScorer, judge_scorers
from di4c_cli.foreign.regular import in_memory_limit, size_text
from di4c_cli.foreign.structured import read_json
from di4c_cli.generate.shards import MANIFEST
from di4c_cli.tasks.base import ImageTask
from di4c_cli.tasks.registry import TASKS


def evaluate_file(path: Path, options: ScorerOptions, n: int | None, out: Path) -> Results:
    """Figures of the first `n` samples of a file; images are small beside their features and stay in memory."""
    start = time.monotonic()
    ids = None if is_text(path) else _ids(path)
    text = is_text(path) or ids is not None
    if ids is not None:
        samples: Any = ids[:n]
    else:
        samples = _texts(path)[:n] if text else _images(path, n)
    size: tuple[int, ...] = () if text else samples.shape[1:]
    if not text:  # files are often sorted by class, but splits and subsets of samples must be alike
        samples = np.random.default_rng(0).permutation(samples)
    # the classifier of the first toy task with images of this size takes them
    images = (task for task in TASKS.values() if isinstance(task, ImageTask))
    task = next((task for task in images if size == (task.image_side, task.image_side)), None)
    context = ScorerContext(None, task, len(samples), out, options, image_size=size)
    scorers = make_scorers(judge_scorers(context) if text else ["features"], context)
    if isinstance(scorers[0], JudgeScorer) and ids is not None:
        samples = scorers[0].judge.tokenizer.batch_decode(samples)
    figures: dict[str, Figure] = {}
    for scorer in scorers:
        scorer.prepare(None)
        figures |= _figures(scorer, samples, ids)
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
    results = new_results(kind, f"Samples of {path.name}", start, torch.device(options.device), [cell], scorers)
    if text and ids is None:
        results.notes.append("Texts have no ids, so the published perplexity is that of the judge's tokens of them.")
    return results


def _texts(path: Path) -> list[str]:
    """One text per line, or the samples of a sheet that `di4c sample` wrote."""
    lines = read_texts(path)
    if path.suffix != ".txt" or lines[0] != "--- sample 0":
        return lines
    parts = re.split(r"^--- sample \d+\n", path.read_text(encoding="utf-8"), flags=re.MULTILINE)
    return [part.removesuffix("\n") for part in parts[1:]]


def _ids(path: Path) -> np.ndarray | None:
    """Token ids `(n, D)` of an .npy file or of the shards that `di4c sample` wrote; None for images."""
    if (path / MANIFEST).is_file():
        try:
            kind = read_json(path / MANIFEST)["codec"]["type"]
        except (KeyError, TypeError):
            raise UserError(f"{path / MANIFEST} cannot be read.", "Name a folder that `di4c sample` wrote.") from None
        if kind != "text":
            raise UserError(f"{path} holds ids of images.", "Measure their model with --student.")
        return np.concatenate([read_array(file)[:] for file in sorted(path.glob("ids-*.npy"))])
    stored = read_array(path) if path.suffix == ".npy" and path.is_file() else None
    if stored is None or stored.ndim != 2 or not np.issubdtype(stored.dtype, np.integer):
        return None
    array = stored[:]
    if array.size == 0 or array.min() < 0:
        raise UserError(f"{path} holds no token ids.", "Write ids from 0 on, (n, length).")
    return array


def _images(path: Path, n: int | None) -> np.ndarray:
    """The first `n` images of a file or folder, or all, as far as memory allows."""
    found: list[np.ndarray] = []
    for image in islice(chain.from_iterable(image_batches(path)), n):
        found.append(image)
        if len(found) * image.nbytes > in_memory_limit():
            limit = size_text(in_memory_limit())
            raise UserError(f"The images of {path} take more than {limit}, too many for this machine.", "Use -n.")
    return np.stack(found)


def _figures(scorer: Scorer, samples: Any, ids: np.ndarray | None) -> dict[str, Figure]:
    """Figures of decoded samples; texts and images of a file have no ids, so their `x` is empty."""
    x = np.empty((len(samples), 0), np.int64) if ids is None else ids.astype(np.int64)

    def compute(first: int, count: int) -> Scores:
        return scorer.score(torch.from_numpy(x[first : first + count]), samples[first : first + count])

    with tempfile.TemporaryDirectory(prefix="di4c-") as folder:
        parts = ScoreParts(Path(folder), len(samples), IMAGES_PER_BATCH)
        parts.fill(compute)
        return scorer.summarise(parts)
