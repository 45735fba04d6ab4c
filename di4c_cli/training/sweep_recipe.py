"""A sweep: one base recipe with a few values changed in every row, as in the paper's ablation tables.

A contest is a sweep whose rows are methods, each with a recipe of its own. Imports no torch.
"""

from __future__ import annotations

import re
from typing import Any, Literal

from pydantic import Field

from di4c_cli import recipe_file
from di4c_cli.errors import UserError
from di4c_cli.recipe import Recipe
from di4c_cli.schema import Section

PaperFigures = dict[int, list[float]]
"""Published figures by sampling steps, in the order of the sweep's `metrics`."""


class SweepRow(Section):
    """One student of the table."""

    label: str = Field(description="name of the row")
    base: str | None = Field(None, description="the row's own recipe; none: the sweep's")
    set: dict[str, Any] = Field(default_factory=dict, description="dotted recipe keys and their values")
    paper: PaperFigures = Field(default_factory=dict, description="published figures")

    @property
    def folder(self) -> str:
        """The label as a folder name."""
        return re.sub(r"[^A-Za-z0-9]+", "-", self.label).strip("-").lower()


class PaperTable(Section):
    """The published table: the recipe of its rows, and its figures of the teacher."""

    base: str = Field(description="name of the recipe, without a folder")
    teacher: PaperFigures = Field(default_factory=dict, description="published figures")


class Sweep(Section):
    """A table: rows are recipes, columns are the step counts of the base recipe's `evaluation` section."""

    kind: Literal["sweep"] = Field("sweep", description="what the file is for")
    name: str = Field(description="as in `di4c recipes`")
    summary: str = Field(description="one line about it")
    set: dict[str, Any] = Field(default_factory=dict, description="values of all rows, whatever the base")
    base: str = Field(description="the recipe that the rows change if `--base` names no other")
    small: dict[str, Any] = Field(
        default_factory=dict, description="values of all rows on that base only: its budget, steps and samples"
    )
    metrics: list[str] = Field(
        default_factory=lambda: ["frechet", "is"], min_length=1, description="figures in each cell"
    )
    seeds: int = Field(1, ge=1, le=64, description="students of each row, with training seeds from `--seed` on")
    labels: Literal["none", "uniform"] | None = Field(
        None,
        description="how all models of a contest are sampled: without labels, or every class equally often; none: not "
        "a contest, images of a toy task are sampled without labels",
    )
    teacher_steps: list[int] = Field(default_factory=list, description="further step counts of the teacher")
    paper: PaperTable | None = Field(
        None, description="`base` and `teacher`: the recipe of the published table and its figures by steps"
    )
    rows: list[SweepRow] = Field(
        min_length=1,
        description="`label`, `base`, `set` (dotted keys and values) and `paper` (figures by steps) of each student",
    )

    def published(self, recipe: Recipe, row: SweepRow | None, steps: int) -> dict[str, float]:
        """The paper's figures of a row, or of the teacher, if `recipe` is the one that the paper trains."""
        if self.paper is None or recipe.name.rpartition("/")[2] != self.paper.base:
            return {}
        figures = self.paper.teacher if row is None else row.paper
        return dict(zip(self.metrics, figures.get(steps, ())))


def read_sweep(name: str, rows: list[str] | None = None, seeds: int | None = None) -> Sweep:
    """A sweep by name or path, of all rows or those with these labels; a recipe of another kind is rejected."""
    kind = recipe_file.kind_of(name)
    if kind != "sweep":
        known = [other for other in recipe_file.names() if recipe_file.kind_of(other) == "sweep"]
        raise UserError(f"'{name}' is a {kind} recipe, not a sweep.", f"Choose one of {', '.join(known)}.")
    sweep = recipe_file.validate(Sweep, recipe_file.raw(name), name)
    folders = [row.folder for row in sweep.rows]
    if len(set(folders)) < len(folders) or "" in folders:
        raise UserError(f"Two rows of {name} have the same label.", "Give every row its own label.")
    labels = [row.label for row in sweep.rows]
    for wanted in rows or []:
        if wanted not in labels:
            near = recipe_file.nearest(wanted, labels)
            raise UserError(f"{name} has no row '{wanted}'.{near}", f"Its rows: {'; '.join(labels)}.")
    chosen = [row for row in sweep.rows if not rows or row.label in rows]
    return sweep.model_copy(update={"rows": chosen, "seeds": seeds or sweep.seeds})


def row_recipes(sweep: Sweep, base: str | None, overrides: dict[str, Any]) -> list[tuple[SweepRow, Recipe]]:
    """Every row as a whole recipe; `overrides` (flags) take precedence."""
    common = sweep.set if base else {**sweep.set, **sweep.small}
    names = [base or row.base or sweep.base for row in sweep.rows]
    return [(row, recipe_file.read(name, {**common, **row.set, **overrides})) for row, name in zip(sweep.rows, names)]
