"""From what a user asks for to an evaluation that can run: models, plan, instruments, a place to write."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, field
from pathlib import Path

from di4c_cli.errors import UserError
from di4c_cli.evaluation.contest import default_out, entrants
from di4c_cli.evaluation.instruments import world_of, world_scorer
from di4c_cli.evaluation.plan import Plan, steps_plan
from di4c_cli.evaluation.result import Results
from di4c_cli.evaluation.run import Entrant, evaluate
from di4c_cli.evaluation.scorer import Scorer

DEFAULTS: dict[str, tuple[int, list[int]]] = {
    "tiny-digits": (1000, [1, 2, 4, 8]),
    "tiny-pixels": (500, [2, 4, 8, 16]),
    "tiny-vq": (500, [1, 2, 4, 8]),
    "tiny-text": (500, [1, 2, 4, 8, 16]),
}
"""Samples and steps when nobody says: two slow cores finish in under two minutes."""


@dataclass
class Order:
    """What was asked for; None is not asking."""

    student: str | None = None
    teacher: str | None = None
    others: dict[str, str] = field(default_factory=dict)
    steps: list[int] | None = None
    n: int | None = None
    seed: int = 0
    out: Path | None = None
    device: str = "cpu"


@dataclass
class Prepared:
    """Everything checked; `run` does the work."""

    plan: Plan
    entrants: list[Entrant]
    scorers: list[Scorer]
    n: int
    seed: int
    out: Path
    world: str

    @property
    def total(self) -> int:
        """Samples to draw."""
        rows = {entrant.row for entrant in self.entrants}
        return self.n * sum(cell.row in rows for cell in self.plan.cells)

    @property
    def main(self) -> str:
        """The headline figure."""
        return self.scorers[0].main

    def announcement(self) -> str:
        """What is about to happen, in one line."""
        columns = ", ".join(self.plan.columns)
        judge = self.scorers[0].instrument().name
        names = " and ".join(f"{entrant.row} {entrant.model.name}" for entrant in self.entrants)
        return f"{self.plan.name}: {names}; {columns}; n = {self.n}, seed {self.seed}; measured by {judge}."

    def run(self, advance: Callable[[int], None] = lambda count: None) -> Results:
        """Sample and measure; the parts stay in the folder, so a second run computes only what is missing."""
        gallery = self.out / "samples"
        work = self.out / "parts"
        return evaluate(
            self.plan, self.entrants, self.scorers, self.n, self.seed, work, advance, self.world, gallery
        )


def fulfil(order: Order, say: Callable[[str], None] = lambda text: None) -> Prepared:
    """Check an order and load what it needs; nothing is written yet."""
    taking_part = entrants(order.student, order.teacher, order.others, order.device, say)
    world = world_of(taking_part[-1].model)
    if any(world_of(entrant.model) != world for entrant in taking_part):
        raise UserError(
            "Teacher and student do not make the same kind of samples.", "Use the student's own teacher."
        )
    n, steps = DEFAULTS.get(world, (1000, [1, 2, 4, 8]))
    rows = [entrant.row for entrant in taking_part]
    names = " against ".join(entrant.model.name for entrant in reversed(taking_part))
    plan = steps_plan(world or taking_part[-1].model.name, names, rows, order.steps or steps, order.n or n)
    out = order.out or default_out(taking_part[-1].ref)
    check_out(out)
    return Prepared(plan, taking_part, [world_scorer(world)], plan.n, order.seed, out, world)


def check_out(out: Path) -> None:
    """Refuse a folder that holds something else."""
    if out.is_file():
        raise UserError(f"{out} is a file.", "Choose another --out.")
    if (
        out.is_dir()
        and any(out.iterdir())
        and not ((out / "results.json").is_file() or (out / "parts").is_dir())
    ):
        raise UserError(f"{out} holds something that is not an evaluation.", "Choose another --out.")
