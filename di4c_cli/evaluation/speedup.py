"""Steps saved at equal quality: how many steps the teacher needs for what the student does in k.

The teacher's curve is read between its step counts, linearly in the logarithms of steps and quality, after each
point was lowered to the best of those before it. Everything is repeated with independent seeds; the speed-up is
their geometric mean, with Student's interval over the repetitions.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field

from pydantic import BaseModel, ConfigDict

from di4c_cli import __version__, embedded
from di4c_cli.errors import UserError
from di4c_cli.evaluation.instruments import world_of
from di4c_cli.evaluation.world import quality
from di4c_cli.metric.interval import t_quantile
from di4c_cli.model import Model, load

TEACHER_STEPS = (1, 2, 4, 8, 16, 32)
STUDENT_STEPS = (1, 2, 4, 8, 16)
FIGURES = {"tiny-text": ("bits_per_char", "entropy")}
"""Quality (lower is better) and diversity of a world; images: Fréchet distance and recall."""
REPEATS = 3
SAMPLES = {"tiny-digits": 2000, "tiny-vq": 1000, "tiny-pixels": 1000, "tiny-text": 1000}


class Frozen(BaseModel):
    """A part of the result."""

    model_config = ConfigDict(extra="forbid")


class Interval(Frozen):
    """A figure with its 95 % interval over the repetitions; without ends where there was only one."""

    value: float
    low: float | None = None
    high: float | None = None


class Saving(Frozen):
    """The student at `steps` steps against the teacher.

    `speedup` is a lower limit if `beyond`: the teacher did not get there with the steps it was given.
    `ratio` and `diversity` compare with the teacher at the same number of steps.
    """

    steps: int
    quality: Interval
    speedup: Interval
    beyond: bool
    ratio: Interval
    diversity: Interval


class WorldSpeedup(Frozen):
    """One world's curves and savings."""

    world: str
    figure: str
    diversity: str
    n: int
    seeds: list[int]
    student: str
    teacher_curve: dict[int, Interval]
    savings: list[Saving]


class Speedups(Frozen):
    """What `di4c eval --protocol tiny-speedup` writes."""

    protocol: str = "tiny-speedup"
    di4c: str = __version__
    worlds: list[WorldSpeedup]


def steps_for(curve: Sequence[tuple[int, float]], value: float) -> tuple[float, bool]:
    """Steps at which a curve of (steps, quality) reaches `value`, and whether that lies beyond its end.

    A value that the first point reaches already needs that point's steps.
    """
    best = math.inf
    falling = []
    for steps, figure in sorted(curve):
        best = min(best, figure)
        falling.append((steps, best))
    before = falling[0]
    if value >= before[1]:
        return float(before[0]), False
    for point in falling[1:]:
        if value >= point[1]:
            share = math.log(before[1] / value) / math.log(before[1] / point[1])
            return before[0] * (point[0] / before[0]) ** share, False
        before = point
    return float(falling[-1][0]), True


def geometric(values: Sequence[float]) -> Interval:
    """Geometric mean with Student's interval of the logarithms."""
    logs = [math.log(value) for value in values]
    mean = sum(logs) / len(logs)
    if len(logs) == 1:
        return Interval(value=values[0])
    spread = math.sqrt(sum((x - mean) ** 2 for x in logs) / (len(logs) - 1))
    reach = _quantile(len(logs) - 1) * spread / math.sqrt(len(logs))
    return Interval(value=math.exp(mean), low=math.exp(mean - reach), high=math.exp(mean + reach))


def _quantile(freedom: int) -> float:
    """Student's 97.5 % point; the smallest cases by heart, where the expansion is not good enough."""
    return {1: 12.706, 2: 4.303, 3: 3.182}.get(freedom) or t_quantile(freedom)


@dataclass
class Curves:
    """Quality and diversity of both models: one dictionary of step counts for each repetition."""

    teacher: list[dict[int, tuple[float, float]]] = field(default_factory=list)
    student: list[dict[int, tuple[float, float]]] = field(default_factory=list)

    def savings(self) -> list[Saving]:
        """One entry for each of the student's step counts."""
        out = []
        for k in self.student[0]:
            reached = [
                steps_for([(s, q) for s, (q, _) in teacher.items()], student[k][0])
                for teacher, student in zip(self.teacher, self.student)
            ]
            pairs = [(student[k], teacher[k]) for teacher, student in zip(self.teacher, self.student)]
            out.append(
                Saving(
                    steps=k,
                    quality=geometric([student[k][0] for student in self.student]),
                    speedup=geometric([steps / k for steps, _ in reached]),
                    beyond=any(beyond for _, beyond in reached),
                    ratio=geometric([a[0] / b[0] for a, b in pairs]),
                    diversity=geometric([max(a[1], 1e-9) / max(b[1], 1e-9) for a, b in pairs]),
                )
            )
        return out


def world_speedup(
    world: str,
    student: Model,
    n: int,
    seeds: Sequence[int],
    advance: Callable[[int], None] = lambda count: None,
) -> WorldSpeedup:
    """Both curves of one world, repeated for each seed."""
    teacher = load(world)
    figure, diversity = FIGURES.get(world, ("frechet", "recall"))
    curves = Curves()
    for seed in seeds:
        for model, counts, into in (
            (teacher, TEACHER_STEPS, curves.teacher),
            (student, STUDENT_STEPS, curves.student),
        ):
            points = {}
            for steps in counts:
                values = quality(world, model, steps, n, seed)
                points[steps] = (values[figure], values[diversity])
                advance(n)
            into.append(points)
    return WorldSpeedup(
        world=world,
        figure=figure,
        diversity=diversity,
        n=n,
        seeds=list(seeds),
        student=student.name,
        teacher_curve={k: geometric([c[k][0] for c in curves.teacher]) for k in TEACHER_STEPS},
        savings=curves.savings(),
    )


def work(worlds: Sequence[str], n: int | None, seeds: Sequence[int]) -> int:
    """Samples that will be drawn, for a progress bar."""
    cells = len(TEACHER_STEPS) + len(STUDENT_STEPS)
    return sum((n or SAMPLES[world]) * cells * len(seeds) for world in worlds)


def all_speedups(
    students: dict[str, str],
    n: int | None = None,
    seeds: Sequence[int] = (0, 1, 2),
    advance: Callable[[int], None] = lambda count: None,
) -> Speedups:
    """Every world in `students` (world -> student's name or folder)."""
    worlds = [
        world_speedup(world, load(ref), n or SAMPLES[world], seeds, advance)
        for world, ref in students.items()
    ]
    return Speedups(worlds=worlds)


def one_student(ref: str) -> dict[str, str]:
    """The world of one student, by its name, run or folder."""
    world = world_of(load(ref))
    if not world:
        raise UserError(
            f"'{ref}' is not a student of an embedded world.", "Name one, or leave --student out."
        )
    return {world: ref}


def default_students() -> dict[str, str]:
    """The embedded students."""
    return {world: f"{world}-student" for world in embedded.WORLDS}
