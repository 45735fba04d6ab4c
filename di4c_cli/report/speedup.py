"""Steps saved at equal quality as a table's rows and as one picture with a panel per world."""

from __future__ import annotations

import io
from typing import TYPE_CHECKING

from di4c_cli.evaluation.speedup import Interval, Speedups, WorldSpeedup
from di4c_cli.report.plot import COLOURS

if TYPE_CHECKING:
    from matplotlib.axes import Axes

WIDE = 3.0
"""Quality that differs by more than this factor is drawn in logarithms."""
COLUMNS = (
    "world",
    "n",
    "steps",
    "quality",
    "teacher at the same steps",
    "steps saved",
    "diversity / teacher's",
    "/ teacher's best",
    "nearer to training; teacher",
)
TITLES = {"frechet": "Fréchet distance", "bits_per_char": "bits per character"}


def shown(figure: Interval, digits: int = 3) -> str:
    """`2.31 [2.05, 2.60]`."""
    text = f"{figure.value:.{digits}g}"
    if figure.low is None or figure.high is None:
        return text
    return f"{text} [{figure.low:.{digits}g}, {figure.high:.{digits}g}]"


def rows(result: Speedups) -> list[list[str]]:
    """One row for each world and step count of its student."""
    out = []
    for world in result.worlds:
        for saving in world.savings:
            beyond = "≥ " if saving.beyond else ""
            out.append(
                [
                    world.world,
                    str(world.n),
                    str(saving.steps),
                    shown(saving.quality, 4),
                    shown(world.teacher_curve[saving.steps], 4),
                    f"{beyond}{shown(saving.speedup)}x",
                    shown(saving.diversity),
                    shown(saving.diversity_best),
                    f"{shown(saving.leaning)}; {world.teacher_leaning[saving.steps].value:.3g}",
                ]
            )
    return out


def speedup_png(result: Speedups) -> bytes:
    """Quality against steps, one panel per world; the numbers are the speed-ups."""
    from matplotlib.backends.backend_agg import FigureCanvasAgg
    from matplotlib.figure import Figure

    figure = Figure(figsize=(4.2 * len(result.worlds), 3.6), dpi=130, layout="constrained")
    FigureCanvasAgg(figure)
    for axes, world in zip(figure.subplots(1, len(result.worlds), squeeze=False)[0], result.worlds):
        _panel(axes, world)
    buffer = io.BytesIO()
    figure.savefig(buffer, format="png")
    return buffer.getvalue()


def _panel(axes: Axes, world: WorldSpeedup) -> None:
    curves = {
        "teacher": list(world.teacher_curve.items()),
        "student": [(saving.steps, saving.quality) for saving in world.savings],
    }
    for name, points in curves.items():
        _curve(axes, name, points)
    for saving in world.savings[:-1]:
        beyond = "≥" if saving.beyond else ""
        axes.annotate(
            f"{beyond}{saving.speedup.value:.2g}×",
            (saving.steps, saving.quality.value),
            xytext=(0, -14),
            textcoords="offset points",
            ha="center",
            fontsize=8,
            color=COLOURS["student"],
        )
    _scales(axes, world)
    axes.margins(y=0.15)
    axes.set_xlabel("sampling steps")
    axes.set_ylabel(TITLES.get(world.figure, world.figure))
    axes.set_title(f"{world.world}, n = {world.n}, {len(world.seeds)} repetitions", fontsize=9)
    axes.grid(True, alpha=0.25)
    axes.legend(frameon=False, fontsize=8)


def _curve(axes: Axes, name: str, points: list[tuple[int, Interval]]) -> None:
    """One model's quality with its intervals."""
    y = [figure.value for _, figure in points]
    reach = [
        [value - (figure.low or value) for value, (_, figure) in zip(y, points)],
        [(figure.high or value) - value for value, (_, figure) in zip(y, points)],
    ]
    steps = [count for count, _ in points]
    axes.errorbar(steps, y, yerr=reach, color=COLOURS[name], marker="o", label=name)


def _scales(axes: Axes, world: WorldSpeedup) -> None:
    """Steps in powers of two; quality in logarithms where it spans much."""
    from matplotlib.ticker import LogLocator, NullFormatter, ScalarFormatter

    axes.set_xscale("log", base=2)
    axes.xaxis.set_major_formatter(ScalarFormatter())
    axes.xaxis.set_minor_formatter(NullFormatter())
    axes.set_xticks(list(world.teacher_curve))
    worst = max(figure.value for figure in world.teacher_curve.values())
    if worst > WIDE * min(saving.quality.value for saving in world.savings):
        axes.set_yscale("log")
        axes.yaxis.set_major_locator(LogLocator(subs=(1.0, 2.0, 5.0)))
        axes.yaxis.set_major_formatter(ScalarFormatter())
        axes.yaxis.set_minor_formatter(NullFormatter())
