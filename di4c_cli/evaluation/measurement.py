"""One cell of an evaluation with one seed: samples and scores in parts on disk, then figures."""

from __future__ import annotations

import time
from collections.abc import Callable, Sequence
from functools import partial
from pathlib import Path

import numpy as np
import torch

from di4c_cli.evaluation.parts import ScoreParts, Scores, identity
from di4c_cli.evaluation.protocol import CellSpec
from di4c_cli.evaluation.results import Figure
from di4c_cli.evaluation.sampling import CellSampling
from di4c_cli.evaluation.scorers import Scorer
from di4c_cli.process_group import ProcessGroup


class Measurement:
    """Known when `measure` has returned: figures, seconds of samples, scores and figures, tokens per forward pass."""

    def __init__(self, cell: CellSpec, sampling: CellSampling, scorers: Sequence[Scorer], n: int, parts: Path) -> None:
        self.cell, self.sampling, self.scorers, self.n = cell, sampling, scorers, n
        self.samples = ScoreParts(parts / sampling.key, n, sampling.part)
        self.figures: dict[str, Figure] | None = None
        self.seconds, self.tokens_per_pass = 0.0, 0.0

    def fill(self, first: int, count: int) -> None:
        """Draw and score one part, as far as that is missing."""
        self.samples.ensure(first, count, self.sampling.draw)
        start = time.monotonic()
        for scorer in self.scorers:
            self._scores(scorer).ensure(first, count, partial(self._score, scorer))
        self.seconds += time.monotonic() - start

    def summarise(self) -> None:
        """Compute the figures; every part must be filled."""
        start = time.monotonic()
        self.figures = {}
        for scorer in self.scorers:
            scorer.prepare(self.sampling)
            self.figures.update(scorer.summarise(self._scores(scorer)))
        self.tokens_per_pass = float(self.samples.column("tokens").sum() / self.samples.column("passes").sum())
        # the parts hold the time of sampling, perhaps of an earlier evaluation
        self.seconds += float(self.samples.column("seconds").sum()) + time.monotonic() - start

    def ids(self, first: int, count: int) -> torch.Tensor:
        """The samples of one part, `(count, D)`."""
        return torch.from_numpy(self.samples.read(first, count)["x"].astype(np.int64))

    def _score(self, scorer: Scorer, first: int, count: int) -> Scores:
        scorer.prepare(self.sampling)
        x = self.ids(first, count)
        return scorer.score(x, self.sampling.model.decode(x))

    def _scores(self, scorer: Scorer) -> ScoreParts:
        """The scorer's parts beside the samples' own."""
        tag = identity(**scorer.instrument().model_dump())
        return ScoreParts(self.samples.folder / tag, self.n, self.samples.size)


def measure(measurements: Sequence[Measurement], advance: Callable[[int], None], group: ProcessGroup) -> None:
    """Run measurements; the processes of a group divide the parts, and then the figures."""
    parts = {
        (one.samples.folder, first): (one, first, count)  # cells with the same settings have their parts in common
        for one in measurements
        for first, count in one.samples.ranges()
    }
    for one, first, count in group.share(list(parts.values()), lambda part: part[2] * part[0].sampling.plan.steps):
        one.fill(first, count)
        advance(count * group.size)  # the main process shows its own progress as that of all
    group.gather(None)  # figures need the parts of all processes
    for one in group.share(measurements):
        one.summarise()
    done = [(one.figures, one.seconds, one.tokens_per_pass) for one in measurements]
    for one, *found in zip(measurements, *group.gather(done)):
        one.figures, _, one.tokens_per_pass = next(parts for parts in found if parts[0] is not None)
        one.seconds = sum(seconds for _, seconds, _ in found)
