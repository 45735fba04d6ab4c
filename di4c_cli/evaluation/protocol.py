"""An evaluation protocol: which model is sampled how, as cells of a table. Imports no torch."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field, replace
from typing import Any


@dataclass(frozen=True)
class CellSpec:
    """One cell: `row` names a model, `column` a way of sampling; `paper` holds published figures for it.

    `options` are sampling settings. With `best_of`, each of its options is tried and the best is reported. `label`
    overrides the protocol's labels. `place` is the (line, heading) of the printed table where that is not
    (row, column).
    """

    row: str
    column: str
    steps: int
    options: dict[str, Any] = field(default_factory=dict)
    paper: dict[str, float] = field(default_factory=dict)
    best_of: tuple[dict[str, Any], ...] = ()
    label: str | None = None
    place: tuple[str, str] | None = None

    @property
    def model_row(self) -> str:
        """The row of the sampled model: a hybrid cell samples the student, then the teacher."""
        return "student" if self.row == "hybrid" else self.row

    def tries(self) -> list[CellSpec]:
        """The cell itself, or one for each of `best_of`."""
        if not self.best_of:
            return [self]
        return [replace(self, options={**self.options, **more}, best_of=()) for more in self.best_of]


@dataclass(frozen=True)
class PromptSpec:
    """The first `given` of `length` tokens are the prompt; each prompt is continued `times` times.

    `text` is the prompt if neither the user nor a toy task has any.
    """

    given: int
    length: int
    times: int
    text: str = ""


@dataclass(frozen=True)
class EvaluationProtocol:
    """A name, the cells of a table, and how many samples each cell gets."""

    name: str
    title: str
    cells: tuple[CellSpec, ...]
    n: int
    metrics: tuple[str, ...] = ()
    notes: tuple[str, ...] = ()
    labels: str = "uniform"
    """`uniform`: every class equally often, by sample number; `none`: unconditional; a number: that class."""
    scorers: tuple[str, ...] | None = None
    """Registered names; None: the scorer that fits the model; empty: samples only."""
    extra_scorers: tuple[str, ...] = ()
    """Scorers beside those."""
    repeats: int = 1
    """Independent repeats of every cell, each with a seed of its own."""
    prompts: PromptSpec | None = None
    shape: str = "metrics"
    """Of the printed table: `metrics`, one for each figure with ways of sampling across; `together`, one with
    all figures in each cell (FID / IS); `lines`, one line for each cell with the figures across."""

    @property
    def rows(self) -> list[str]:
        """The models' names, in the order of the cells."""
        return list(dict.fromkeys(cell.row for cell in self.cells))


def steps_protocol(
    name: str, title: str, rows: Sequence[str], steps: Sequence[int], n: int, temperatures: Sequence[float] = ()
) -> EvaluationProtocol:
    """Models against step counts, each at every temperature: `di4c eval` without a protocol."""
    heats: list[float | None] = [*temperatures] or [None]
    cells = [
        CellSpec(row, column(count, heat), count, {} if heat is None else {"temperature": heat})
        for row in rows
        for count in steps
        for heat in heats
    ]
    return EvaluationProtocol(name, title, tuple(cells), n)


def column(count: int, temperature: float | None = None) -> str:
    """`4 steps` or `4 steps, T 0.9`."""
    name = "1 step" if count == 1 else f"{count} steps"
    return name if temperature is None else f"{name}, T {temperature:g}"
