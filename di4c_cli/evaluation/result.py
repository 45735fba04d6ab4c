"""The result file: one versioned JSON with every figure and how it was obtained. Does not import torch."""

from __future__ import annotations

from pathlib import Path
from typing import Any, Literal

from pydantic import BaseModel, ConfigDict, Field, ValidationError

from di4c_cli import files
from di4c_cli.errors import UserError

SCHEMA = 1


class Part(BaseModel):
    """A section of a result; unknown keys are refused."""

    model_config = ConfigDict(extra="forbid", allow_inf_nan=False)


class Figure(Part):
    """One metric value with its 95 % interval."""

    value: float
    se: float | None = Field(default=None, description="standard error")
    low: float | None = None
    high: float | None = None
    interval: Literal["bootstrap", "splits", "halves", "exact", "none"] = "none"
    bias: float | None = Field(default=None, description="estimated small-n bias contained in the value")
    better: Literal["lower", "higher", "neither"] = "lower"
    unit: str = ""
    note: str = ""


class Instrument(Part):
    """What measured: a judge or a feature network, and what it was measured against."""

    name: str
    kind: Literal["features", "judge", "exact", "none"]
    digest: str = Field(description="hash of the weights or of the text it was fitted to")
    reference: str = ""
    reference_n: int = 0
    reference_digest: str = ""
    detail: dict[str, Any] = Field(default_factory=dict)


class ModelEntry(Part):
    """A model that took part."""

    row: str
    ref: str
    name: str
    kind: str
    revision: str = ""
    digest: str = Field(description="hash of its tensors")
    parameters: int
    teacher: str = ""
    provenance: dict[str, Any] = Field(default_factory=dict)


class Cell(Part):
    """One model sampled in one way, and its figures."""

    row: str
    column: str
    steps: int | None = None
    n: int
    seed: int
    settings: dict[str, Any] = Field(
        default_factory=dict, description="sampler, dtype, temperature, guidance, …"
    )
    labels: str = ""
    seconds: float = Field(description="wall time of sampling and scoring")
    figures: dict[str, Figure] = Field(default_factory=dict)
    paper: dict[str, float] = Field(default_factory=dict, description="the paper's figures for the same cell")
    samples: list[str] = Field(default_factory=list, description="the first few samples, if they are text")
    picture: str = Field(default="", description="the first few samples as a PNG, if they are images")

    @property
    def key(self) -> tuple[str, str]:
        """Its place in the table."""
        return self.row, self.column


class Results(Part):
    """An evaluation."""

    di4c_results: int = SCHEMA
    protocol: str
    title: str
    world: str = ""
    created: str
    seconds: float
    device: str
    threads: int
    packages: dict[str, str]
    models: list[ModelEntry]
    instruments: list[Instrument]
    cells: list[Cell]
    notes: list[str] = Field(default_factory=list)
    command: str = ""

    def cell(self, row: str, column: str) -> Cell | None:
        """The cell of a row and column, if it was run."""
        return next((cell for cell in self.cells if cell.key == (row, column)), None)

    @property
    def metrics(self) -> list[str]:
        """Names of all figures, in the order they first appear."""
        return list(dict.fromkeys(name for cell in self.cells for name in cell.figures))

    def save(self, path: Path) -> None:
        """Write the JSON, whole or not at all."""
        files.write_text(path, self.model_dump_json(indent=1) + "\n")


def load(path: Path) -> Results:
    """A result file, checked."""
    source = path / "results.json" if path.is_dir() else path
    if not source.is_file():
        raise UserError(f"There is no result file {source}.", "Name a results.json that `di4c eval` wrote.")
    try:
        results = Results.model_validate_json(source.read_bytes())
    except ValidationError as error:
        first = error.errors()[0]
        where = ".".join(map(str, first["loc"])) or "the file"
        raise UserError(
            f"{source} is not a di4c result: {where}: {first['msg']}.", "Name a file that `di4c eval` wrote."
        ) from error
    if results.di4c_results > SCHEMA:
        raise UserError(
            f"{source} was written by a newer di4c (schema {results.di4c_results}).", "Upgrade di4c."
        )
    return results
