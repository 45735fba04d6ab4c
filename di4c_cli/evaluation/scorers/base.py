"""The interface of a scorer, and the registry of scorers by name.

A scorer computes scores per sample, which are kept in parts on disk, and from them figures with intervals.
"""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Callable, Iterable
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, TypeVar

import torch
from torch import Tensor

from di4c_cli.errors import UserError
from di4c_cli.evaluation.config import ScorerOptions
from di4c_cli.evaluation.parts import ScoreParts, Scores
from di4c_cli.evaluation.protocol import PromptSpec
from di4c_cli.evaluation.results import Figure, Instrument
from di4c_cli.evaluation.sampling import CellSampling
from di4c_cli.metric.interval import Interval
from di4c_cli.model import Model
from di4c_cli.recipe_file import nearest
from di4c_cli.tasks.base import ToyTask


@dataclass(frozen=True)
class ScorerContext:
    """What a scorer may depend on. `model` is None when the samples come from a file."""

    model: Model | None
    task: ToyTask | None
    n: int
    out: Path
    options: ScorerOptions = field(default_factory=ScorerOptions)
    prompts: PromptSpec | None = None
    image_size: tuple[int, ...] = ()

    def sample_size(self) -> tuple[int, ...]:
        """Shape of one decoded image."""
        if self.image_size or self.model is None:
            return self.image_size
        blank = torch.zeros(1, self.model.denoiser.length, dtype=torch.long)
        return tuple(self.model.decode(blank).shape[1:])


class Scorer(ABC):
    """`score` sees one part of the samples at a time, `summarise` all parts one after the other."""

    main: str
    """The figure of headlines and plots."""

    @classmethod
    def create(cls, context: ScorerContext) -> Scorer:
        """Build the scorer for an evaluation; scorers without settings inherit this."""
        return cls()

    @classmethod
    def check(cls, context: ScorerContext) -> None:
        """Reject what `create` rejects, but write nothing; scorers that write nothing inherit this."""
        cls.create(context)

    @abstractmethod
    def instrument(self) -> Instrument:
        """Name, hash and reference. Stored scores belong to the hash."""

    def prepare(self, sampling: CellSampling | None) -> None:  # noqa: B027 (most have nothing to prepare)
        """Called before `score` and `summarise` of each cell; None for samples of a file."""

    @abstractmethod
    def score(self, x: Tensor, decoded: Any) -> Scores:
        """Scores of ids `(n, D)` and what they decode to, one row per sample."""

    @abstractmethod
    def summarise(self, parts: ScoreParts) -> dict[str, Figure]:
        """Figures of all samples."""


ScorerClass = TypeVar("ScorerClass", bound=type[Scorer])
_REGISTRY: dict[str, type[Scorer]] = {}


def register_scorer(name: str) -> Callable[[ScorerClass], ScorerClass]:
    """Class decorator: make a scorer available under a name."""

    def register(scorer: ScorerClass) -> ScorerClass:
        _REGISTRY[name] = scorer
        return scorer

    return register


def make_scorers(names: Iterable[str], context: ScorerContext) -> list[Scorer]:
    """Scorers by name."""
    return [_find(name).create(context) for name in names]


def check_scorers(names: Iterable[str], context: ScorerContext) -> None:
    """Reject what `make_scorers` would reject, as far as that is known without writing files."""
    for name in names:
        _find(name).check(context)


def _find(name: str) -> type[Scorer]:
    if name not in _REGISTRY:
        raise UserError(f"Unknown scorer '{name}'.{nearest(name, _REGISTRY)}", f"Known: {', '.join(_REGISTRY)}.")
    return _REGISTRY[name]


def figure_of(interval: Interval, better: str, unit: str = "", note: str = "") -> Figure:
    """An interval as a figure of the result file."""
    return Figure(**vars(interval), better=better, unit=unit, note=note)
