"""What every way of measuring offers: scores per sample, kept in parts, and figures with intervals."""

from __future__ import annotations

from abc import ABC, abstractmethod
from typing import Any

from torch import Tensor

from di4c_cli.evaluation.parts import Parts, Scores
from di4c_cli.evaluation.result import Figure, Instrument
from di4c_cli.evaluation.sampling import CellSampling
from di4c_cli.metric.interval import Interval


class Scorer(ABC):
    """One instrument. `score` sees one part of the samples, `summarise` all parts one after the other."""

    main: str
    """The figure that plots and headlines show."""

    @abstractmethod
    def instrument(self) -> Instrument:
        """Name, hash and reference."""

    def prepare(self, sampling: CellSampling) -> None:  # noqa: B027 (most have nothing to prepare)
        """Told which cell comes next."""

    @abstractmethod
    def score(self, x: Tensor, decoded: Any) -> Scores:
        """Per-sample numbers of ids `(n, D)` and what they decode to."""

    @abstractmethod
    def summarise(self, parts: Parts) -> dict[str, Figure]:
        """Figures of all samples."""


def figure(interval: Interval, better: str, unit: str = "", note: str = "") -> Figure:
    """An interval as it goes into the result file."""
    return Figure(
        value=interval.value,
        se=interval.se,
        low=interval.low,
        high=interval.high,
        interval=interval.method,
        bias=interval.bias,
        better=better,
        unit=unit,
        note=note,
    )
