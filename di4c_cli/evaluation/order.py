"""From what a user asks for to an evaluation that can run: models, plan, instruments, a place to write."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, field, replace
from pathlib import Path

from di4c_cli import recipe_file
from di4c_cli.errors import UserError
from di4c_cli.evaluation.contest import default_out, entrants, run_folder
from di4c_cli.evaluation.instruments import Tools, choose, world_of
from di4c_cli.evaluation.plan import Plan, steps_plan
from di4c_cli.evaluation.prompts import continuations, fitted
from di4c_cli.evaluation.protocols import protocol
from di4c_cli.evaluation.result import Results
from di4c_cli.evaluation.run import evaluate, runnable
from di4c_cli.evaluation.sampling import Continuations, Entrant
from di4c_cli.evaluation.scorer import Scorer
from di4c_cli.recipe import Evaluation

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
    protocol: str | None = None
    steps: list[int] | None = None
    temperatures: list[float] | None = None
    n: int | None = None
    limit: int | None = None
    seed: int = 0
    out: Path | None = None
    tools: Tools = field(default_factory=Tools)
    prompts: Path | None = None


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
    prompts: Continuations | None = None

    @property
    def total(self) -> int:
        """Samples to draw."""
        return self.n * sum(len(cell.tries()) for cell in runnable(self.plan, self.entrants))

    @property
    def main(self) -> str:
        """The headline figure; empty when nothing is measured."""
        return self.scorers[0].main if self.scorers else ""

    def announcement(self) -> str:
        """What is about to happen, in one line."""
        columns = dict.fromkeys(cell.column for cell in runnable(self.plan, self.entrants))
        shown = ", ".join(columns) if len(columns) <= 8 else f"{len(columns)} ways of sampling"
        judge = f"measured by {self.scorers[0].instrument().name}" if self.scorers else "samples only"
        names = " and ".join(f"{entrant.row} {entrant.model.name}" for entrant in self.entrants)
        return f"{self.plan.name}: {names}; {shown}; n = {self.n}, seed {self.seed}; {judge}."

    def run(self, advance: Callable[[int], None] = lambda count: None) -> Results:
        """Sample and measure; the parts stay, so that a second run computes only what is missing."""
        return evaluate(
            self.plan,
            self.entrants,
            self.scorers,
            self.n,
            self.seed,
            self.out / "parts",
            advance,
            self.world,
            self.out / "samples",
            self.prompts,
        )


def fulfil(order: Order, say: Callable[[str], None] = lambda text: None) -> Prepared:
    """Check an order and load what it needs; nothing but cached reference statistics is written yet."""
    out = order.out
    if out is not None:
        check_out(out)
    fixed = None if order.protocol is None else protocol(order.protocol)
    taking_part = entrants(*_named(order, fixed), order.others, order.tools.device, say)
    world = world_of(taking_part[-1].model)
    if any(world_of(entrant.model) != world for entrant in taking_part):
        raise UserError(
            "Teacher and student do not make the same kind of samples.", "Use the student's own teacher."
        )
    plan = fixed or _free_plan(order, taking_part, world)
    if fixed is not None and (order.steps or order.temperatures):
        raise UserError(
            "A protocol fixes its own steps and temperatures.", "Leave --steps and --temperatures out."
        )
    if not runnable(plan, taking_part):
        raise UserError(f"{plan.name} has no row for these models.", f"Its rows: {', '.join(plan.rows)}.")
    plan = fitted(plan, taking_part[-1].model)
    n = _count(order, plan)
    out = out or default_out(taking_part[-1].ref)
    check_out(out)
    prompts = continuations(plan, taking_part[-1].model, world, order.prompts)
    scorers = choose(taking_part[-1].model, world, plan, n, order.tools, out)
    return Prepared(plan, taking_part, scorers, n, order.seed, out, world, prompts)


def _count(order: Order, plan: Plan) -> int:
    """Samples a cell; with prompts a whole number of them, each continued as often as the plan says."""
    n = min(order.n or plan.n, order.limit or order.n or plan.n)
    times = plan.prompts.times if plan.prompts else 1
    if n < times:
        raise UserError(
            f"{plan.name} continues each prompt {times} times, more than the {n} samples.",
            f"Use --limit {times} or more.",
        )
    return n - n % times


def _named(order: Order, plan: Plan | None) -> tuple[str | None, str | None]:
    """Student and teacher; a tiny protocol brings its own pair."""
    if (
        plan is not None
        and plan.name.startswith("tiny-")
        and not (order.student or order.teacher or order.others)
    ):
        world = "tiny-text" if plan.name.startswith("tiny-text") else plan.name
        return f"{world}-student", world
    return order.student, order.teacher


def _defaults(ref: str, world: str) -> tuple[int, list[int]]:
    """Samples and steps: those of the recipe for the student of a run, where it has any; else the world's."""
    n, steps = DEFAULTS.get(world, (1000, [1, 2, 4, 8]))
    run = run_folder(ref)
    if run is None:
        return n, steps
    tree = recipe_file.raw(str(run / "recipe.yaml")).get("evaluation") or {}
    wish = recipe_file.validate(Evaluation, tree, str(run / "recipe.yaml"))
    return wish.samples or n, wish.steps or steps


def _free_plan(order: Order, taking_part: list[Entrant], world: str) -> Plan:
    """Models against steps; the name is the world's, so that results of one world can be compared."""
    n, steps = _defaults(taking_part[-1].ref, world)
    last = taking_part[-1].model
    names = " against ".join(entrant.model.name for entrant in reversed(taking_part))
    rows = [entrant.row for entrant in taking_part]
    plan = steps_plan(world or last.name, names, rows, order.steps or steps, order.n or n, order.temperatures)
    # a class would tell a product model what belongs together, which is what the mixture must find itself
    return replace(plan, n=order.n or n, labels="none" if world else plan.labels)


def check_out(out: Path) -> None:
    """Refuse a folder that holds something else."""
    if out.is_file():
        raise UserError(f"{out} is a file.", "Choose another --out.")
    ours = any((out / name).exists() for name in ("results.json", "speedup.json", "parts")) or any(
        out.glob("reference-*.npz")
    )
    if out.is_dir() and any(out.iterdir()) and not ours:
        raise UserError(f"{out} holds something that is not an evaluation.", "Choose another --out.")
