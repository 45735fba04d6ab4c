"""Charts of results by matplotlib: PNG files, and SVG in the colours of the page.

Matplotlib is imported inside the functions, because commands that draw nothing should not wait for it.
"""

from __future__ import annotations

import io
import re
import warnings
from dataclasses import dataclass, field
from html import escape
from typing import Any

from di4c_cli.evaluation.protocol import column
from di4c_cli.evaluation.results import Cell, Results
from di4c_cli.printable import printable
from di4c_cli.report.summary import is_frontier
from di4c_cli.report.table import metric_title

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
LINE_STYLES = ("-", ":", "-.", "--")
PNG_SIZE, LARGE, SMALL = (6.4, 4.0), (7.0, 3.2), (4.2, 2.6)
"""Inches. A chart that is drawn small gets a small size, so that its numbers stay readable."""
LOG_SCALE_RATIO, WIDE_RATIO = 3.0, 20.0
"""Figures that differ by more than this factor are drawn in logarithms: quality with steps saved, and all others."""
DIVERSITY = ("self_bleu", "entropy", "is")
"""The figure on the other axis of a trade-off: the first of these that was measured."""
MAX_DRAWN = 1e100


@dataclass
class Line:
    """Points (x, y) with optional intervals (low, high)."""

    name: str
    colour: str
    points: list[tuple[float, float]]
    ends: list[tuple[float, float] | None] = field(default_factory=list)
    style: str = "-"
    markers: bool = True

    def __post_init__(self) -> None:
        self.leave_out()

    def leave_out(self) -> None:
        """Leave out points that matplotlib cannot scale."""
        ends = self.ends or [None] * len(self.points)
        kept = [(point, end) for point, end in zip(self.points, ends, strict=True) if drawable(*point)]
        self.points = [point for point, _ in kept]
        self.ends = [end if end is not None and drawable(*end) else None for _, end in kept]


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
    arrows: bool = False
    """Whether arrows lead from each point of a line to the next."""


def _family(results: Results, row: str) -> str:
    """The row that `row` is made from by its name, as `sdtt-6+di4c` from `sdtt-6`; else the row itself."""
    rows = dict.fromkeys(cell.row for cell in results.cells)
    made_from = (other for other in rows if re.match(rf"{re.escape(other)} ?\+", row))
    return min(made_from, key=len, default=row)


def drawable(*values: float) -> bool:
    """Whether all values are finite and far from the largest number."""
    return all(abs(value) < MAX_DRAWN for value in values)


def row_colour(results: Results, row: str) -> str:
    """Teachers grey, student orange, other rows in the order of the cells; families share their colours."""
    rows = list(dict.fromkeys(cell.row for cell in results.cells))
    families = {name: _family(results, name) for name in rows}
    teachers = {base for name, base in families.items() if base != name}
    role = {name: "teacher" if name in teachers else name.removeprefix(families[name]) or name for name in rows}
    if role[row] in ROW_COLOURS:
        return ROW_COLOURS[role[row]]
    others = [name for name in dict.fromkeys(role.values()) if name not in ROW_COLOURS]
    colours = OTHER_COLOURS if "student" in role.values() else (ROW_COLOURS["student"], *OTHER_COLOURS)
    return colours[others.index(role[row]) % len(colours)]


def _value(cell: Cell, key: str) -> str:
    """A setting as the name of a line shows it."""
    if key == "steps":
        return column(cell.steps or 0)
    value = str(cell.settings.get(key, ""))
    return f"{value.removeprefix('float')}-bit" if key == "dtype" else value


def _series(results: Results, needed: set[str], *keys: str) -> list[tuple[Line, list[Cell]]]:
    """Lines without points and their cells: one for each row and value of `keys` among cells with all `needed` figures.

    A line's name shows steps, and other keys that differ within its row. Colours tell rows apart, line styles the
    lines of one row and the families of rows.
    """
    groups: dict[tuple[str, ...], list[Cell]] = {}
    for cell in results.cells:
        if needed <= cell.figures.keys() and cell.steps:
            groups.setdefault((cell.row, *(_value(cell, key) for key in keys)), []).append(cell)
    rows = [group[0] for group in groups]
    most = max(map(rows.count, rows), default=1)
    bases = {row: _family(results, row) for row in rows}
    shared = {base for row, base in bases.items() if base != row}
    family = {row: base if base in shared else "" for row, base in bases.items()}
    families = list(dict.fromkeys(family.values()))
    out = []
    for group, cells in groups.items():
        same = [other for other in groups if other[0] == group[0]]
        differ = [len({other[place] for other in same}) > 1 for place in range(1, len(group))]
        shown = [value for value, key, many in zip(group[1:], keys, differ) if key == "steps" or many]
        number = most * families.index(family[group[0]]) + same.index(group)
        style = LINE_STYLES[number % len(LINE_STYLES)]
        out.append((Line(", ".join([group[0], *shown]), row_colour(results, group[0]), [], [], style), cells))
    return out


def main_chart(results: Results) -> Chart:
    """The chart of the main figure: a trade-off where diversity varies too, else against steps."""
    metric = results.main_figure
    return tradeoff_chart(results, metric) if is_tradeoff(results) else steps_chart(results, metric)


def is_tradeoff(results: Results) -> bool:
    """Whether quality is drawn against diversity: continuations of prompts, temperatures or guidance weights."""
    return is_frontier(results) or "self_bleu" in results.metrics


def steps_chart(results: Results, metric: str) -> Chart:
    """A figure against steps: one line for each model, sampler and draw, the paper's figures dashed."""
    lines: list[Line] = []
    for line, cells in _series(results, {metric}, "sampler", "dtype"):
        cells.sort(key=lambda cell: cell.steps or 0)
        line.points = [(float(cell.steps or 0), cell.figures[metric].value) for cell in cells]
        line.ends = [_ends(cell, metric) for cell in cells]
        line.leave_out()
        lines.append(line)
        published = [(float(cell.steps or 0), cell.paper[metric]) for cell in cells if metric in cell.paper]
        if not any(other.points == published and other.colour == line.colour for other in lines):
            name = re.sub(r", \d+-bit", "", line.name)
            lines.append(Line(f"{name} (paper)", line.colour, published, [], "--", len(published) == 1))
    title = metric_title(results, metric)
    chart = Chart(f"{title} against steps", "sampling steps", title, lines, True, metric == "frechet")
    chart.log_y = _spans(chart, WIDE_RATIO)
    if metric == results.main_figure and results.steps_saved:
        # steps saved below the student's points, and a logarithmic axis where quality spans much
        points = {c.steps: c.figures[metric].value for c in results.cells if c.row == "student" and metric in c.figures}
        for entry in results.steps_saved[:-1]:
            if entry.steps in points and drawable(points[entry.steps]):
                text = f"{'≥' if entry.at_least else ''}{entry.steps_saved.value:.2g}×"
                chart.notes.append((float(entry.steps), points[entry.steps], text))
        chart.log_y = _spans(chart, LOG_SCALE_RATIO)
    return chart


def _spans(chart: Chart, ratio: float) -> bool:
    """Whether the values are positive and differ by more than a factor."""
    values = [y for line in chart.lines for _, y in line.points]
    return bool(values) and min(values) > 0 and max(values) > ratio * min(values)


def tradeoff_chart(results: Results, metric: str, steps: int | None = None) -> Chart:
    """A figure against diversity, along guidance weights or temperatures, else along steps; `steps`: of these only."""
    frontier = is_frontier(results)
    other = next((name for name in DIVERSITY if name in results.metrics and name != metric), "entropy")
    keys = ("steps", "sampler", "dtype") if frontier else ("sampler", "dtype")
    x_title, y_title = (metric_title(results, name) for name in (other, metric))
    only = "" if steps is None else f", {steps} steps"
    chart = Chart(f"{y_title} against {x_title}{only}", x_title, y_title, [], arrows=True)

    def along(cell: Cell) -> float:
        settings = cell.settings
        return float((settings.get("guidance") or settings.get("temperature", 1.0)) if frontier else cell.steps or 0)

    labelled: set[tuple[float, ...]] = set()
    for line, cells in _series(results, {metric, other}, *keys):
        chosen = sorted((cell for cell in cells if steps in (None, cell.steps)), key=along)
        line.points = [(cell.figures[other].value, cell.figures[metric].value) for cell in chosen]
        line.ends = [_ends(cell, metric) for cell in chosen]
        line.leave_out()
        chart.lines.append(line)
        values = tuple(map(along, chosen))
        if values not in labelled:  # one line of several with the same steps or weights is enough
            chart.notes += [(*point, f"{value:g}") for point, value in zip(line.points, values, strict=True)]
            labelled.add(values)
    return chart


def _ends(cell: Cell, metric: str) -> tuple[float, float] | None:
    figure = cell.figures[metric]
    return None if figure.low is None or figure.high is None else (figure.low, figure.high)


def as_png(chart: Chart, heading: str) -> bytes:
    """The chart as a PNG file, with a heading and a legend."""
    return _save(chart, PNG_SIZE, heading, "png")


def as_svg(chart: Chart, size: tuple[float, float] = SMALL) -> str:
    """The chart as inline SVG in the page's colours; empty without points. Equal charts give equal text."""
    if not any(line.points for line in chart.lines):
        return ""
    text = _save(chart, size, "", "svg").decode()
    text = text[text.index("<svg") :]
    text = re.sub(SVG_NOISE, "", text, flags=re.S)
    used = set(re.findall(r'(?:href="|url\()#([^")]+)', text))
    text = re.sub(r' id="([^"]*)"', lambda found: found[0] if found[1] in used else "", text)
    name = f'role="img" aria-label="{escape(printable(chart.title))}"'
    text = re.sub(r'<svg [^>]*?(viewBox="[^"]*")[^>]*>', lambda found: f"<svg {found[1]} {name}>", text, count=1)
    for colour, variable in PAGE_COLOURS.items():
        text = text.replace(colour, variable)
    return text.strip()


def label(text: str, limit: int = 50) -> str:
    """A text for a picture, short enough to leave room for it; matplotlib skips labels that begin with `_`."""
    return printable(text, limit).lstrip("_")


def _save(chart: Chart, size: tuple[float, float], heading: str, kind: str) -> bytes:
    import matplotlib  # slow to import, see above

    # the salt makes the ids of equal charts equal, "none" keeps text as text, a dollar sign is a dollar sign
    settings = {"svg.hashsalt": label(chart.title), "svg.fonttype": "none", "text.parse_math": False, "font.size": 9}
    with matplotlib.rc_context(settings), warnings.catch_warnings():  # type: ignore[arg-type]
        warnings.simplefilter("ignore")  # a glyph that the font lacks is drawn as a box
        buffer = io.BytesIO()
        vector = kind == "svg"
        metadata = {"Date": None} if vector else None
        draw(chart, size, heading).savefig(buffer, format=kind, metadata=metadata, transparent=vector)
    return buffer.getvalue()


def draw(chart: Chart, size: tuple[float, float], heading: str) -> Any:
    """The chart as a matplotlib figure, with a legend below a heading or where colours do not tell lines apart."""
    from matplotlib.figure import Figure  # slow to import, see above

    figure = Figure(figsize=size, dpi=130, layout="constrained")
    axes: Any = figure.subplots()
    axes.grid(True, color=GRID_COLOUR, linewidth=0.8)
    axes.set_axisbelow(True)
    axes.spines[["top", "right"]].set_visible(False)
    axes.spines[["left", "bottom"]].set_color(GRID_COLOUR)
    axes.tick_params(colors=TEXT_COLOUR, which="both")
    for line in chart.lines:
        if line.points:
            _draw_line(axes, line, chart.arrows)
    colour, place, side = (TEXT_COLOUR, -3, "right") if chart.arrows else (ROW_COLOURS["student"], 6, "left")
    for x, y, text in chart.notes:
        axes.annotate(label(text), (x, y), (place, -12), textcoords="offset points", ha=side, fontsize=8, color=colour)
    _scale(axes, chart)
    axes.set_xlabel(label(chart.x_title), color=TEXT_COLOUR)
    if heading:
        axes.set_ylabel(label(chart.y_title), color=TEXT_COLOUR)
        axes.set_title(label(heading, 90), fontsize=9)
    styles = {line.style for line in chart.lines if line.points and line.markers}
    if heading or (size == LARGE and len(styles) > 1):
        axes.legend(frameon=False, fontsize=8)
    return figure


def _draw_line(axes: Any, line: Line, arrows: bool) -> None:
    x, y = zip(*line.points, strict=True)
    ends = line.ends or [None] * len(x)
    bars = [
        [0.0 if end is None else max(0.0, value - end[0]) for value, end in zip(y, ends, strict=True)],
        [0.0 if end is None else max(0.0, end[1] - value) for value, end in zip(y, ends, strict=True)],
    ]
    marker = "o" if line.markers else ""
    look = {"color": line.colour, "ls": line.style, "marker": marker, "ms": 4.5, "capsize": 3}
    width = 1.8 if line.style == "-" else 1.2
    axes.errorbar(x, y, bars if any(ends) else None, label=label(line.name), lw=width, **look)
    head = {"arrowstyle": "-|>", "color": line.colour, "lw": 0, "shrinkA": 0, "shrinkB": 3, "mutation_scale": 14}
    for start, end in zip(line.points, line.points[1:]) if arrows else ():
        axes.annotate("", end, start, arrowprops=head)


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
