"""An evaluation protocol: which model is sampled how, as cells of a table. Imports no torch."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field, replace
from typing import Any

STUDENT_ROW = "student"
HYBRID_ROW = "hybrid"


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
        return STUDENT_ROW if self.row == HYBRID_ROW else self.row

    @property
    def has_jumps(self) -> bool:
        """Whether it draws Poisson jumps, which are drawn in 64 bits only."""
        return self.options.get("sampler") == "tau-leaping" or bool(self.options.get("corrector"))

    def drawn_in(self, dtype: str, named: bool) -> CellSpec:
        """The cell with draws of a precision, which `named` adds to its column: `4 steps, 32-bit`."""
        mark = f", {dtype.removeprefix('float')}-bit" if named else ""
        place = None if self.place is None else (self.place[0], self.place[1] + mark)
        return replace(self, column=self.column + mark, place=place, options={**self.options, "dtype": dtype})

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

    def with_row(self, row: str) -> EvaluationProtocol:
        """With a row that it does not have: the student's cells, without the paper's figures."""
        own = [cell for cell in self.cells if cell.row == STUDENT_ROW]
        places = [None if cell.place is None else (row, cell.place[1]) for cell in own]
        new = [replace(cell, row=row, paper={}, place=place) for cell, place in zip(own, places, strict=True)]
        return replace(self, cells=(*self.cells, *new))

    def with_options(self, **options: Any) -> EvaluationProtocol:
        """The protocol with sampling settings for all cells."""
        cells = (replace(cell, options={**cell.options, **options}) for cell in self.cells)
        return replace(self, cells=tuple(cells))

    def with_draws(self, dtypes: Sequence[str]) -> EvaluationProtocol:
        """Every cell with draws of each precision; with several, the columns name them."""
        cells, notes = [], []
        for cell in self.cells:
            own = ["float64"] if cell.has_jumps else dtypes
            cells += [cell.drawn_in(dtype, len(dtypes) > 1) for dtype in own]
        if "float32" in dtypes:
            notes.append("32-bit draws are those of the published code.")
            if any(cell.has_jumps for cell in self.cells):
                notes.append("τ-leaping and corrector steps are drawn in 64 bits only.")
        return replace(self, cells=tuple(cells), notes=(*self.notes, *notes))


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
