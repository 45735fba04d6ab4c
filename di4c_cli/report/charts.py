"""Charts of results by matplotlib: PNG files, and SVG in the colours of the page.

Matplotlib is imported inside the functions, because commands that draw nothing should not wait for it.
"""

from __future__ import annotations

import io
import re
from dataclasses import dataclass, field
from html import escape
from typing import Any

from di4c_cli.evaluation.results import Cell, Results
from di4c_cli.report.table import METRIC_NAMES, metric_title

ROW_COLOURS = {"teacher": "#6b7280", "student": "#d9480f"}
OTHER_COLOURS = ("#1c7ed6", "#2b8a3e", "#862e9c", "#0b7285", "#a61e4d", "#997404")
PAGE_COLOURS = {
    "#6b7280": "var(--teacher)",
    "#d9480f": "var(--student)",
    "#1c7ed6": "var(--other1)",
    "#2b8a3e": "var(--other2)",
    "#862e9c": "var(--other3)",
    "#0b7285": "var(--other4)",
    "#a61e4d": "var(--other5)",
    "#997404": "var(--other6)",
    "#5d6571": "var(--soft)",
    "#e3e0db": "var(--line)",
}
"""Colours of the charts as CSS variables of the page, which has a dark and a printed version."""
TEXT_COLOUR, GRID_COLOUR = "#5d6571", "#e3e0db"
SVG_NOISE = r'<metadata>.*?</metadata>|<style.*?</style>| xmlns(:\w+)?="[^"]*"|<!--.*?-->| font-family: [^;]*;'
"""What matplotlib writes into an SVG and the page does not need."""
LINE_STYLES = ("-", "--", ":", "-.")
PNG_SIZE, LARGE, SMALL = (6.4, 4.0), (7.0, 3.2), (4.2, 2.6)
"""Inches. A chart that is drawn small gets a small size, so that its numbers stay readable."""
LOG_SCALE_RATIO = 3.0
"""Quality with steps saved is drawn in logarithms if it differs by more than this factor."""
TRADE_OFF_PARTNER = {"frechet": "is"}
"""The figure on the other axis of a trade-off; text figures are drawn against entropy."""


@dataclass
class Line:
    """Points (x, y) with optional intervals (low, high)."""

    name: str
    colour: str
    points: list[tuple[float, float]]
    ends: list[tuple[float, float] | None] = field(default_factory=list)
    style: str = "-"
    markers: bool = True


@dataclass
class Chart:
    """One chart; `title` is also the text for readers who cannot see it."""

    title: str
    x_title: str
    y_title: str
    lines: list[Line]
    step_axis: bool = False
    from_zero: bool = False
    log_y: bool = False
    notes: list[tuple[float, float, str]] = field(default_factory=list)
    """Short texts below points."""


def row_colour(results: Results, row: str) -> str:
    """Teacher grey, student orange, other rows in the order of the cells."""
    others = [name for name in dict.fromkeys(cell.row for cell in results.cells) if name not in ROW_COLOURS]
    return ROW_COLOURS.get(row) or OTHER_COLOURS[others.index(row) % len(OTHER_COLOURS)]


def steps_chart(results: Results, metric: str) -> Chart:
    """A figure against steps: one line for each model and sampler, the paper's figures dashed."""
    groups: dict[tuple[str, str], list[Cell]] = {}
    for cell in results.cells:
        if metric in cell.figures and cell.steps:
            groups.setdefault((cell.row, str(cell.settings.get("sampler", ""))), []).append(cell)
    rows = [row for row, _ in groups]
    lines = []
    for place, ((row, sampler), cells) in enumerate(groups.items()):
        cells.sort(key=lambda cell: cell.steps or 0)
        name, colour = f"{row}, {sampler}" if rows.count(row) > 1 else row, row_colour(results, row)
        points = [(float(cell.steps or 0), cell.figures[metric].value) for cell in cells]
        ends = [_ends(cell, metric) for cell in cells]
        lines.append(Line(name, colour, points, ends, ":" if row in rows[:place] else "-"))
        published = [(float(cell.steps or 0), cell.paper[metric]) for cell in cells if metric in cell.paper]
        lines.append(Line(f"{name} (paper)", colour, published, style="--", markers=False))
    title = metric_title(results, metric)
    chart = Chart(f"{title} against steps", "sampling steps", title, lines, True, metric == "frechet")
    if metric == results.main_figure and results.steps_saved:
        _add_steps_saved(chart, results, metric)
    return chart


def _add_steps_saved(chart: Chart, results: Results, metric: str) -> None:
    """Steps saved below the student's points, and a logarithmic axis where quality spans much."""
    for entry in results.steps_saved[:-1]:
        bound = "≥" if entry.at_least else ""
        cell = next(c for c in results.cells if (c.row, c.steps) == ("student", entry.steps))
        text = f"{bound}{entry.steps_saved.value:.2g}×"
        chart.notes.append((float(entry.steps), cell.figures[metric].value, text))
    values = [y for line in chart.lines for _, y in line.points]
    chart.log_y = min(values) > 0 and max(values) > LOG_SCALE_RATIO * min(values)


def tradeoff_charts(results: Results, metric: str) -> list[Chart]:
    """One chart for each step count: the figure along temperatures or guidance weights."""
    other = TRADE_OFF_PARTNER.get(metric, "entropy")
    charts = []
    for steps in sorted({cell.steps for cell in results.cells if cell.steps is not None}):
        lines = []
        for row in dict.fromkeys(cell.row for cell in results.cells):
            cells = [
                c for c in results.cells if (c.row, c.steps) == (row, steps) and {metric, other} <= c.figures.keys()
            ]
            points = [(c.figures[other].value, c.figures[metric].value) for c in cells]
            lines.append(Line(row, row_colour(results, row), points, [_ends(c, metric) for c in cells]))
        x_title, y_title = METRIC_NAMES.get(other, other), metric_title(results, metric)
        charts.append(Chart(f"{y_title} against {x_title}, {steps} steps", x_title, y_title, lines))
    return charts


def tradeoff_chart(results: Results, metric: str) -> Chart:
    """All step counts in one chart, each with its line style."""
    charts = tradeoff_charts(results, metric)
    steps = sorted({cell.steps for cell in results.cells if cell.steps is not None})
    lines = [
        Line(f"{line.name}, {count} steps", line.colour, line.points, [], LINE_STYLES[place % len(LINE_STYLES)])
        for place, (count, chart) in enumerate(zip(steps, charts))
        for line in chart.lines
    ]
    return Chart(charts[0].y_title, charts[0].x_title, charts[0].y_title, lines)


def _ends(cell: Cell, metric: str) -> tuple[float, float] | None:
    figure = cell.figures[metric]
    return None if figure.low is None or figure.high is None else (figure.low, figure.high)


def as_png(chart: Chart, heading: str) -> bytes:
    """The chart as a PNG file, with a heading and a legend."""
    return _draw(chart, PNG_SIZE, heading, "png")


def as_svg(chart: Chart, size: tuple[float, float] = SMALL) -> str:
    """The chart as inline SVG in the page's colours; empty without points. Equal charts give equal text."""
    if not any(line.points for line in chart.lines):
        return ""
    text = _draw(chart, size, "", "svg").decode()
    text = text[text.index("<svg") :]
    text = re.sub(SVG_NOISE, "", text, flags=re.S)
    used = set(re.findall(r'(?:href="|url\()#([^")]+)', text))
    text = re.sub(r' id="([^"]*)"', lambda found: found[0] if found[1] in used else "", text)
    label = f'role="img" aria-label="{escape(chart.title)}"'
    text = re.sub(r'<svg [^>]*?(viewBox="[^"]*")[^>]*>', lambda found: f"<svg {found[1]} {label}>", text, count=1)
    for colour, variable in PAGE_COLOURS.items():
        text = text.replace(colour, variable)
    return text.strip()


def _draw(chart: Chart, size: tuple[float, float], heading: str, kind: str) -> bytes:
    import matplotlib  # slow to import, see above
    from matplotlib.figure import Figure  # likewise

    # the salt makes the ids of equal charts equal, "none" keeps text as text, a dollar sign is a dollar sign
    settings = {"svg.hashsalt": chart.title, "svg.fonttype": "none", "text.parse_math": False, "font.size": 9}
    with matplotlib.rc_context(settings):  # type: ignore[arg-type]
        figure = Figure(figsize=size, dpi=130, layout="constrained")
        axes: Any = figure.subplots()
        _style(axes)
        for line in chart.lines:
            if line.points:
                _draw_line(axes, line)
        for x, y, text in chart.notes:
            place = {"xytext": (6, -12), "textcoords": "offset points", "ha": "left"}
            axes.annotate(text, (x, y), fontsize=8, color=ROW_COLOURS["student"], **place)
        _scale(axes, chart)
        axes.set_xlabel(chart.x_title, color=TEXT_COLOUR)
        if heading:
            axes.set_ylabel(chart.y_title, color=TEXT_COLOUR)
            axes.set_title(heading, fontsize=9)
            axes.legend(frameon=False, fontsize=8)
        buffer = io.BytesIO()
        vector = kind == "svg"
        figure.savefig(buffer, format=kind, metadata={"Date": None} if vector else None, transparent=vector)
    return buffer.getvalue()


def _style(axes: Any) -> None:
    axes.grid(True, color=GRID_COLOUR, linewidth=0.8)
    axes.set_axisbelow(True)
    axes.spines[["top", "right"]].set_visible(False)
    axes.spines[["left", "bottom"]].set_color(GRID_COLOUR)
    axes.tick_params(colors=TEXT_COLOUR, which="both")


def _draw_line(axes: Any, line: Line) -> None:
    x, y = zip(*line.points, strict=True)
    ends = line.ends or [None] * len(x)
    bars = [
        [0.0 if end is None else max(0.0, value - end[0]) for value, end in zip(y, ends, strict=True)],
        [0.0 if end is None else max(0.0, end[1] - value) for value, end in zip(y, ends, strict=True)],
    ]
    marker = "o" if line.markers else ""
    look = {"color": line.colour, "ls": line.style, "marker": marker, "ms": 4.5, "capsize": 3}
    width = 1.8 if line.style == "-" else 1.2
    axes.errorbar(x, y, bars if any(ends) else None, label=line.name, lw=width, **look)


def _scale(axes: Any, chart: Chart) -> None:
    """Steps in powers of two, with a tick for every step count."""
    from matplotlib.ticker import LogLocator, NullFormatter, ScalarFormatter  # slow to import, see above

    shown = sorted({x for line in chart.lines for x, _ in line.points})
    if chart.step_axis:
        axes.set_xscale("log", base=2)
        axes.set_xticks(shown)
        axes.xaxis.set_major_formatter(ScalarFormatter())
        axes.xaxis.set_minor_formatter(NullFormatter())
    if chart.log_y:
        axes.set_yscale("log")
        axes.yaxis.set_major_locator(LogLocator(subs=(1.0, 2.0, 5.0)))
        axes.yaxis.set_major_formatter(ScalarFormatter())
        axes.yaxis.set_minor_formatter(NullFormatter())
        axes.margins(y=0.15)
    elif chart.from_zero:
        axes.set_ylim(bottom=0)
