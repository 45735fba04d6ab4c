"""What is to be evaluated: which model is sampled how, as cells of a table. Does not import torch."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import Any


@dataclass(frozen=True)
class CellPlan:
    """One cell: `row` names a model, `column` a way of sampling; `paper` holds published figures for it.

    `options` are sampling settings; `hybrid = -1` stands for "the second half of the steps".
    """

    row: str
    column: str
    steps: int
    options: dict[str, Any] = field(default_factory=dict)
    paper: dict[str, float] = field(default_factory=dict)

    def sampling(self) -> dict[str, Any]:
        """Options as the sampler takes them."""
        out = dict(self.options)
        if out.get("hybrid") == -1:
            out["hybrid"] = self.steps // 2
        return out


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

    @property
    def rows(self) -> list[str]:
        return list(dict.fromkeys(cell.row for cell in self.cells))

    @property
    def columns(self) -> list[str]:
        return list(dict.fromkeys(cell.column for cell in self.cells))


def steps_plan(name: str, title: str, rows: list[str], steps: list[int], n: int, **options: Any) -> Plan:
    """Models against step counts: the shape of `di4c eval` without a protocol."""
    cells = [CellPlan(row, _steps_name(count), count, dict(options)) for row in rows for count in steps]
    return Plan(name, title, tuple(cells), n)


def _steps_name(count: int) -> str:
    return "1 step" if count == 1 else f"{count} steps"
