"""The result file: one versioned JSON with every figure and how it was obtained. Imports no torch."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from typing import Annotated, Any, Literal

from pydantic import AliasChoices, Field, ValidationError

from di4c_cli import files
from di4c_cli.errors import UserError
from di4c_cli.foreign.structured import read_json
from di4c_cli.schema import CurrentName, Section

RESULTS_SCHEMA = 2
"""1: files of di4c 0.1, which can still be read; `task` was called `world`."""
Count = Annotated[int, Field(ge=0, le=2**53)]
"""A whole number that a float holds exactly: a damaged file may contain numbers of any length."""


class Figure(Section):
    """One metric value with its 95 % interval."""

    value: float
    se: float | None = Field(default=None, description="standard error")
    low: float | None = None
    high: float | None = None
    interval: Literal["bootstrap", "splits", "halves", "subsets", "repeats", "exact", "none"] = "none"
    over: str = Field(default="", description="what the interval's method resamples or averages")
    bias: float | None = Field(default=None, description="estimated small-n bias contained in the value")
    better: Literal["lower", "higher", "neither"] = "lower"
    unit: str = ""
    note: str = ""
    repeats: list[float] = Field(default_factory=list, description="the value of each repeat, if repeated")


class Instrument(Section):
    """What measured the samples: a judge or a feature network, and its reference."""

    name: str
    kind: Literal["features", "judge", "exact", "none"]
    digest: str = Field(description="hash of the weights or of the text it was fitted to")
    reference: str = ""
    reference_n: Count = 0
    reference_digest: str = ""
    detail: dict[str, Any] = Field(default_factory=dict)


class ModelEntry(Section):
    """A model that was evaluated."""

    row: str
    ref: str
    name: CurrentName
    kind: str
    revision: str = ""
    digest: str = Field(description="hash of its tensors")
    parameters: Count
    teacher: str = ""
    information: str = Field(default="", description="what a student learned from: its teacher, data, labels")
    forwards: float | None = Field(default=None, description="training compute in network-forward equivalents")
    provenance: dict[str, Any] = Field(default_factory=dict)


class Cell(Section):
    """One model sampled in one way, and its figures."""

    row: str
    column: str
    steps: Count | None = None
    n: Count
    seed: int = Field(gt=-(10**30), lt=10**30)
    repeats: Count = Field(default=1, description="with the seeds `seed`, `seed + 1`, …; n samples each")
    settings: dict[str, Any] = Field(default_factory=dict, description="sampler, dtype, temperature, guidance, …")
    labels: str = ""
    seconds: float = Field(description="wall time of sampling and scoring")
    tokens_per_pass: float | None = Field(
        default=None, description="symbols drawn for each forward pass of a sample; a guided pass counts twice"
    )
    figures: dict[str, Figure] = Field(default_factory=dict)
    paper: dict[str, float] = Field(default_factory=dict, description="the paper's figures for the same cell")
    samples: list[str] = Field(default_factory=list, description="the first few samples, if they are text")
    picture: str = Field(default="", description="the first few samples as a PNG, if they are images")

    @property
    def key(self) -> tuple[str, str]:
        """Its place in the table."""
        return self.row, self.column


def best_cell(cells: Sequence[Cell], metric: str) -> Cell:
    """The cell with the best figure; all cells have it."""
    sign = -1 if cells[0].figures[metric].better == "higher" else 1
    return min(cells, key=lambda cell: sign * cell.figures[metric].value)


class StepsSaved(Section):
    """The student at `steps` steps against the teacher.

    `steps_saved` is the number of steps at which the teacher is as good, divided by `steps`; a lower bound if
    `at_least`, because the teacher was not as good at any of its step counts. `ratio` and `diversity` compare
    with the teacher at the same step count, `diversity_best` with the teacher at its largest step count,
    `diversity_equal` with the teacher at the steps of equal quality.
    """

    row: str = "student"
    steps: Count
    quality: Figure
    teacher_quality: Figure
    steps_saved: Figure
    at_least: bool
    ratio: Figure
    diversity: Figure | None = None
    diversity_best: Figure | None = None
    diversity_equal: Figure | None = None
    nearer_to_training: Figure | None = None
    teacher_nearer_to_training: Figure | None = None


class Results(Section):
    """An evaluation."""

    di4c_results: int = RESULTS_SCHEMA
    protocol: CurrentName
    title: str
    task: CurrentName = Field(
        default="", validation_alias=AliasChoices("task", "world"), description="toy task, if any"
    )
    created: str
    seconds: float
    device: str
    threads: Count
    packages: dict[str, str]
    models: list[ModelEntry]
    instruments: list[Instrument]
    cells: list[Cell] = Field(min_length=1)
    main: str = Field(default="", description="the figure of headlines and plots")
    diversity: str = Field(default="", description="the figure that measures diversity beside it, if any")
    steps_saved: list[StepsSaved] = Field(default_factory=list, description="summary of repeated results")
    headline: list[str] = Field(default_factory=list, description="students against the teacher in sentences")
    ratios: list[str] = Field(default_factory=list, description="ratios of student to teacher at k and 2k steps")
    comparison: str = Field(default="", description="picture of teacher and student beside each other, if any")
    notes: list[str] = Field(default_factory=list)
    command: str = ""

    def cell(self, row: str, column: str) -> Cell | None:
        """The cell of a row and column, if it was evaluated."""
        return next((cell for cell in self.cells if cell.key == (row, column)), None)

    @property
    def metrics(self) -> list[str]:
        """Names of all figures, in the order they first appear."""
        return list(dict.fromkeys(name for cell in self.cells for name in cell.figures))

    @property
    def main_figure(self) -> str:
        """Name of the figure of headlines and plots; empty when nothing was measured."""
        return self.main or next(iter(self.metrics), "")

    def save(self, path: Path) -> None:
        """Write the JSON, whole or not at all."""
        files.write_text(path, self.model_dump_json(indent=1) + "\n")


def load(path: Path) -> Results:
    """A result file, checked."""
    source, hint = path / "results.json" if path.is_dir() else path, "Name a file that `di4c eval` wrote."
    if not source.is_file():
        raise UserError(f"There is no result file {source}.", "Name a results.json that `di4c eval` wrote.")
    try:
        results = Results.model_validate(read_json(source, what="di4c result", hint=hint))
    except ValidationError as error:
        first = error.errors()[0]
        where = ".".join(map(str, first["loc"])) or "the file"
        raise UserError(f"{source} is not a di4c result: {where}: {first['msg']}.", hint) from error
    if results.di4c_results > RESULTS_SCHEMA:
        raise UserError(f"{source} was written by a newer di4c (schema {results.di4c_results}).", "Upgrade di4c.")
    return results


def run_folder(folder: Path) -> Path | None:
    """The run of a folder of a model or of results: the folder itself or its parent, if that has a recipe."""
    return next((p for p in (folder, folder.parent) if folder.is_dir() and (p / "recipe.yaml").is_file()), None)
