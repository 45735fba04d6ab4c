"""What is to be evaluated: which model is sampled how, as cells of a table. Does not import torch."""

from __future__ import annotations

from dataclasses import dataclass, field, replace
from typing import Any


@dataclass(frozen=True)
class CellPlan:
    """One cell: `row` names a model, `column` a way of sampling; `paper` holds published figures for it.

    `options` are sampling settings; `hybrid = -1` stands for "the second half of the steps". With `best_of`,
    each of its options is tried and the best is reported. `label` overrides the plan's labels. `place` is the
    (line, heading) of the printed table where that is not (row, column).
    """

    row: str
    column: str
    steps: int
    options: dict[str, Any] = field(default_factory=dict)
    paper: dict[str, float] = field(default_factory=dict)
    best_of: tuple[dict[str, Any], ...] = ()
    label: str | None = None
    place: tuple[str, str] | None = None

    def sampling(self) -> dict[str, Any]:
        """Options as the sampler takes them."""
        out = dict(self.options)
        if out.get("hybrid") == -1:
            out["hybrid"] = self.steps // 2
        return out

    def tries(self) -> list[CellPlan]:
        """The cell itself, or one for each of `best_of`."""
        if not self.best_of:
            return [self]
        return [replace(self, options={**self.options, **more}, best_of=()) for more in self.best_of]


@dataclass(frozen=True)
class Prompts:
    """Continuations: the first `given` of `length` tokens are a prompt's; each is continued `times` times."""

    given: int = 50
    length: int = 100
    times: int = 5


@dataclass(frozen=True)
class Plan:
    """A whole evaluation: a name, a table's worth of cells and how many samples each gets."""

    name: str
    title: str
    cells: tuple[CellPlan, ...]
    n: int
    metrics: tuple[str, ...] = ()
    notes: tuple[str, ...] = ()
    labels: str = "uniform"
    """`uniform`: every class equally often, by sample number; `none`: unconditional; a number: that class."""
    kind: str = "figures"
    """`figures`, `mauve`, or `samples` (pictures and texts only, nothing is measured)."""
    prompts: Prompts | None = None
    shape: str = "metrics"
    """Of the printed table: `metrics`, one for each figure with ways of sampling across; `together`, one with
    all figures in each cell (FID / IS); `lines`, one line a cell with the figures across."""

    @property
    def rows(self) -> list[str]:
        """The models' names, in the order of the cells."""
        return list(dict.fromkeys(cell.row for cell in self.cells))


def steps_plan(
    name: str, title: str, rows: list[str], steps: list[int], n: int, temperatures: list[float] | None = None
) -> Plan:
    """Models against step counts, each at every temperature: `di4c eval` without a protocol."""
    heats: list[float | None] = [*temperatures] if temperatures else [None]
    cells = [
        CellPlan(row, column(count, heat), count, {} if heat is None else {"temperature": heat})
        for row in rows
        for count in steps
        for heat in heats
    ]
    return Plan(name, title, tuple(cells), n)


def column(count: int, temperature: float | None = None) -> str:
    """`4 steps` or `4 steps, T 0.9`."""
    name = "1 step" if count == 1 else f"{count} steps"
    return name if temperature is None else f"{name}, T {temperature:g}"
