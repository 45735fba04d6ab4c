"""A sweep: one base recipe with a few values changed in every row, as in the paper's ablation tables.

Imports no torch.
"""

from __future__ import annotations

import re
from typing import Annotated, Any, Literal

from pydantic import Field

from di4c_cli import recipe_file
from di4c_cli.errors import UserError
from di4c_cli.recipe import Recipe
from di4c_cli.schema import MAX_SAMPLES, MAX_STEPS, Section


class SweepRow(Section):
    """One student of the table."""

    label: str = Field(description="name of the row")
    set: dict[str, Any] = Field(description="dotted recipe keys and their values")

    @property
    def folder(self) -> str:
        """The label as a folder name."""
        return re.sub(r"[^A-Za-z0-9]+", "-", self.label).strip("-").lower()


class Sweep(Section):
    """A table: rows are recipes, columns are step counts and metrics."""

    kind: Literal["sweep"] = Field("sweep", description="what the file is for")
    name: str = Field(description="as in `di4c recipes`")
    summary: str = Field(description="one line about it")
    base: str = Field(description="the recipe that all rows change")
    set: dict[str, Any] = Field(default_factory=dict, description="values common to all rows")
    steps: list[Annotated[int, Field(ge=1, le=MAX_STEPS)]] = Field(
        min_length=1, description="sampling steps, the columns of the table"
    )
    samples: int = Field(2000, ge=2, le=MAX_SAMPLES, description="samples for each figure")
    metrics: list[str] = Field(
        default_factory=lambda: ["frechet", "is"], min_length=1, description="figures in each cell"
    )
    rows: list[SweepRow] = Field(min_length=1, description="`label` and `set`, dotted keys and values, of each student")


def read_sweep(name: str) -> Sweep:
    """A sweep by name or path; a recipe of another kind is rejected."""
    kind = recipe_file.kind_of(name)
    if kind != "sweep":
        known = [other for other in recipe_file.names() if recipe_file.kind_of(other) == "sweep"]
        raise UserError(f"'{name}' is a {kind} recipe, not a sweep.", f"Choose one of {', '.join(known)}.")
    sweep = recipe_file.validate(Sweep, recipe_file.raw(name), name)
    folders = [row.folder for row in sweep.rows]
    if len(set(folders)) < len(folders) or "" in folders:
        raise UserError(f"Two rows of {name} have the same label.", "Give every row its own label.")
    return sweep


def row_recipes(sweep: Sweep, base: str | None, overrides: dict[str, Any]) -> list[tuple[SweepRow, Recipe]]:
    """Every row as a whole recipe; `overrides` (flags) take precedence."""
    return [(row, recipe_file.read(base or sweep.base, {**sweep.set, **row.set, **overrides})) for row in sweep.rows]
