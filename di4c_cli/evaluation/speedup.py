"""Steps saved at equal quality: how many steps the teacher needs for what the student does in k.

The teacher's curve is read between its step counts, linearly in the logarithms of steps and quality, after each
point was lowered to the best of those before it. Everything is repeated with independent seeds; the speed-up is
their geometric mean, with Student's interval over the repetitions; shares are averaged as they are.
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
REPEATS = 6
SAMPLES = {"tiny-digits": 2000, "tiny-vq": 1000, "tiny-pixels": 500, "tiny-text": 500}


class Figures(BaseModel):
    """A part of the result; a key that is not its own is a mistake."""

    model_config = ConfigDict(extra="forbid")


class Interval(Figures):
    """A figure with its 95 % interval over the repetitions; without ends where there was only one."""

    value: float
    low: float | None = None
    high: float | None = None


class Saving(Figures):
    """The student at `steps` steps against the teacher.

    `speedup` is a lower limit if `beyond`: the teacher did not get there with the steps it was given.
    `ratio` and `diversity` compare with the teacher at the same number of steps, `diversity_best` with the
    teacher at its largest one. `leaning` is the share of samples nearer to a training item than to any
    held-out one: one half for a model that has not memorised.
    """

    steps: int
    quality: Interval
    speedup: Interval
    beyond: bool
    ratio: Interval
    diversity: Interval
    diversity_best: Interval
    leaning: Interval


class WorldSpeedup(Figures):
    """One world's curves and savings."""

    world: str
    figure: str
    diversity: str
    n: int
    seeds: list[int]
    student: str
    teacher_curve: dict[int, Interval]
    teacher_leaning: dict[int, Interval]
    savings: list[Saving]


class Speedups(Figures):
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
    """Geometric mean of ratios with Student's interval of the logarithms."""
    mean, reach = _student([math.log(value) for value in values])
    if reach is None:
        return Interval(value=values[0])
    return Interval(value=math.exp(mean), low=math.exp(mean - reach), high=math.exp(mean + reach))


def share(values: Sequence[float]) -> Interval:
    """Mean of shares, which may be 0, with Student's interval inside [0, 1]."""
    mean, reach = _student(values)
    if reach is None:
        return Interval(value=mean)
    return Interval(value=mean, low=max(0.0, mean - reach), high=min(1.0, mean + reach))


def _student(values: Sequence[float]) -> tuple[float, float | None]:
    """The mean and half its 95 % interval, None for a single value."""
    mean = sum(values) / len(values)
    if len(values) == 1:
        return mean, None
    spread = math.sqrt(sum((x - mean) ** 2 for x in values) / (len(values) - 1))
    return mean, _quantile(len(values) - 1) * spread / math.sqrt(len(values))


def _quantile(freedom: int) -> float:
    """Student's 97.5 % point; the smallest cases by heart, where the expansion is not good enough."""
    return {1: 12.706, 2: 4.303, 3: 3.182}.get(freedom) or t_quantile(freedom)


@dataclass(frozen=True)
class Point:
    """What was measured of one model at one step count."""

    quality: float
    diversity: float
    leaning: float


@dataclass
class Curves:
    """Both models' points by step count, one dictionary for each repetition."""

    teacher: list[dict[int, Point]] = field(default_factory=list)
    student: list[dict[int, Point]] = field(default_factory=list)

    def savings(self) -> list[Saving]:
        """One entry for each of the student's step counts."""
        return [self._saving(k) for k in self.student[0]]

    def _saving(self, k: int) -> Saving:
        repeats = [(student[k], teacher) for student, teacher in zip(self.student, self.teacher)]
        reached = [
            steps_for([(steps, point.quality) for steps, point in teacher.items()], own.quality)
            for own, teacher in repeats
        ]
        return Saving(
            steps=k,
            quality=geometric([own.quality for own, _ in repeats]),
            speedup=geometric([steps / k for steps, _ in reached]),
            beyond=any(beyond for _, beyond in reached),
            ratio=geometric([own.quality / teacher[k].quality for own, teacher in repeats]),
            diversity=geometric([_share(own, teacher[k]) for own, teacher in repeats]),
            diversity_best=geometric([_share(own, teacher[max(teacher)]) for own, teacher in repeats]),
            leaning=share([own.leaning for own, _ in repeats]),
        )


def _share(student: Point, teacher: Point) -> float:
    """The student's diversity as a share of the teacher's, who may have none in one step."""
    return max(student.diversity, 1e-9) / max(teacher.diversity, 1e-9)


def world_speedup(
    world: str,
    student: Model,
    n: int,
    seeds: Sequence[int],
    steps: Sequence[int],
    advance: Callable[[int], None] = lambda count: None,
) -> WorldSpeedup:
    """Both curves of one world, repeated for each seed; the student's at `steps`."""
    teacher = load(world, device=student.denoiser.device)
    figure, diversity = FIGURES.get(world, ("frechet", "recall"))
    curves = Curves()
    for seed in seeds:
        for model, counts, into in (
            (teacher, teacher_steps(steps), curves.teacher),
            (student, steps, curves.student),
        ):
            points = {}
            for count in counts:
                values = quality(world, model, count, n, seed)
                points[count] = Point(values[figure], values[diversity], values["leaning"])
                advance(n)
            into.append(points)
    return WorldSpeedup(
        world=world,
        figure=figure,
        diversity=diversity,
        n=n,
        seeds=list(seeds),
        student=student.name,
        teacher_curve={k: geometric([c[k].quality for c in curves.teacher]) for k in curves.teacher[0]},
        teacher_leaning={k: share([c[k].leaning for c in curves.teacher]) for k in curves.teacher[0]},
        savings=curves.savings(),
    )


def teacher_steps(steps: Sequence[int]) -> list[int]:
    """The teacher's step counts beside a student at `steps`."""
    return sorted({*TEACHER_STEPS, *steps})


def work(worlds: Sequence[str], n: int | None, seeds: Sequence[int], steps: Sequence[int]) -> int:
    """Samples that will be drawn, for a progress bar."""
    cells = len(teacher_steps(steps)) + len(steps)
    return sum((n or SAMPLES[world]) * cells * len(seeds) for world in worlds)


def all_speedups(
    students: dict[str, str],
    n: int | None,
    seeds: Sequence[int],
    steps: Sequence[int],
    advance: Callable[[int], None] = lambda count: None,
    device: str = "cpu",
) -> Speedups:
    """Every world in `students` (world -> student's name or folder)."""
    worlds = [
        world_speedup(world, load(ref, device=device), n or SAMPLES[world], seeds, steps, advance)
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
