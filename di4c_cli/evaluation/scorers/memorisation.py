"""Memorisation of training items: the share of samples nearer to a training item than to any held-out one."""

from __future__ import annotations

from functools import cached_property
from typing import Any

import numpy as np
from torch import Tensor

from di4c_cli.errors import UserError
from di4c_cli.evaluation.parts import ScoreParts, Scores
from di4c_cli.evaluation.results import Figure, Instrument
from di4c_cli.evaluation.scorers.base import Scorer, ScorerContext, figure_of, register_scorer
from di4c_cli.metric.interval import of_mean
from di4c_cli.metric.neighbours import hamming, nearer_to_training, squared_distances
from di4c_cli.tasks.base import ImageTask, ToyTask

COMPARED_ITEMS = 500
"""Training items and held-out items among which the nearest one is searched."""


@register_scorer("memorisation")
class MemorisationScorer(Scorer):
    """Nearest items by pixels, or by words that differ; one half for a model that has not memorised."""

    main = "nearer_to_training"

    def __init__(self, task: ToyTask) -> None:
        self.task = task

    @classmethod
    def create(cls, context: ScorerContext) -> MemorisationScorer:
        if context.task is None:
            raise UserError("Memorisation is measured on toy tasks only.", "Leave this scorer out.")
        return cls(context.task)

    def instrument(self) -> Instrument:
        name = "nearest items"
        return Instrument(name=name, kind="none", digest="1", reference=self.task.name, reference_n=COMPARED_ITEMS)

    @cached_property
    def items(self) -> tuple[np.ndarray, np.ndarray]:
        """Training items and held-out items, spread over all of them, as vectors."""
        data = self.task.data
        train, held_out = (x[:: max(1, len(x) // COMPARED_ITEMS)] for x in (data.train, data.held_out))
        return self._vectors(train), self._vectors(held_out)

    def _vectors(self, x: Tensor) -> np.ndarray:
        if not isinstance(self.task, ImageTask):
            return np.asarray(x.cpu().numpy())
        return np.asarray(self.task.codec.decode(x)).reshape(len(x), -1)

    def score(self, x: Tensor, decoded: Any) -> Scores:
        distance = squared_distances if isinstance(self.task, ImageTask) else hamming
        return {"nearer": nearer_to_training(self._vectors(x), *self.items, distance)}

    def summarise(self, parts: ScoreParts) -> dict[str, Figure]:
        note = "one half without memorisation"
        return {"nearer_to_training": figure_of(of_mean(parts.column("nearer")), "neither", note=note)}
