"""Sections of the page: each takes results or a run folder and gives HTML, empty when it has nothing."""

from __future__ import annotations

import base64
import difflib
import json
from html import escape
from pathlib import Path
from typing import Any

from di4c_cli.evaluation.result import Cell, Results
from di4c_cli.report.lines import lines
from di4c_cli.report.parts import folded, table
from di4c_cli.report.plot import OTHER
from di4c_cli.report.summary import is_frontier
from di4c_cli.report.svg import LARGE, SMALL, Series, line_chart
from di4c_cli.report.table import NAMES, metric_title, overview

COLOUR = {"teacher": 0, "student": 1}


def colour(results: Results, row: str) -> int:
    """Teacher and student have theirs; other rows follow in order."""
    others = [name for name in dict.fromkeys(cell.row for cell in results.cells) if name not in COLOUR]
    return COLOUR[row] if row in COLOUR else 2 + others.index(row) % 4


def legend(results: Results) -> str:
    """Which colour is whose."""
    rows = dict.fromkeys(cell.row for cell in results.cells)
    keys = "".join(f'<span class="key c{colour(results, row)}"></span>{escape(row)}' for row in rows)
    return f'<p class="soft">{keys} <span>&nbsp; bars: 95 % intervals</span></p>'


def quality(results: Results) -> str:
    """Charts of every metric against steps, and the table."""
    if is_frontier(results):
        charts = _tradeoffs(results, results.metrics[0])
    else:
        charts = "".join(_chart(results, metric) for metric in results.metrics)
    header, rows = overview(results)
    figures = f"<h3>Figures</h3>{table(header, rows)}"
    title = "Trade-off" if is_frontier(results) else "Quality against steps"
    return f'<h2>{title}</h2>{legend(results)}<div class="charts">{charts}</div>{figures}'


def _chart(results: Results, metric: str) -> str:
    series = []
    for line in lines(results, metric):
        shade = colour(results, line.row)
        points = [(float(c.steps or 0), c.figures[metric].value) for c in line.cells]
        series.append(Series(line.name, shade, points, [_ends(c, metric) for c in line.cells]))
        published = [(float(c.steps or 0), c.paper[metric]) for c in line.cells if metric in c.paper]
        series.append(Series(f"{line.name} (paper)", shade, published, style="paper", dots=False))
    title = metric_title(results, metric)
    size = LARGE if metric == results.metrics[0] else SMALL
    svg = line_chart(
        series, "sampling steps", f"{title} against steps", from_zero=metric == "frechet", size=size
    )
    return f"<figure><figcaption>{escape(title)}</figcaption>{svg}</figure>" if svg else ""


def _tradeoffs(results: Results, metric: str) -> str:
    """One chart a step count: the figure against entropy (or IS) along temperatures or guidance weights."""
    other = OTHER.get(metric, "entropy")
    out: list[str] = []
    for steps in sorted({cell.steps for cell in results.cells if cell.steps is not None}):
        series = []
        for row in dict.fromkeys(cell.row for cell in results.cells):
            cells = [
                c
                for c in results.cells
                if (c.row, c.steps) == (row, steps) and {metric, other} <= c.figures.keys()
            ]
            points = [(c.figures[other].value, c.figures[metric].value) for c in cells]
            series.append(Series(row, colour(results, row), points, [_ends(c, metric) for c in cells]))
        title = f"{metric_title(results, metric)} against {NAMES.get(other, other)}, {steps} steps"
        svg = line_chart(series, NAMES.get(other, other), title, log_x=False, size=SMALL if out else LARGE)
        out.append(f"<figure><figcaption>{escape(title)}</figcaption>{svg}</figure>" if svg else "")
    return "".join(out)


def _ends(cell: Cell, metric: str) -> tuple[float, float] | None:
    figure = cell.figures[metric]
    return None if figure.low is None or figure.high is None else (figure.low, figure.high)


def samples(results: Results, folder: Path) -> str:
    """The first samples of every row at equal steps, same seed, side by side."""
    blocks = []
    for column in dict.fromkeys(cell.column for cell in results.cells):
        cells = [cell for cell in results.cells if cell.column == column and (cell.samples or cell.picture)]
        if not cells:
            continue
        shown = _texts(cells) if cells[0].samples else _pictures(cells, folder)
        if shown:
            blocks.append(f'<h3>{escape(column)}</h3><div class="pair">{shown}</div>')
    if not blocks:
        return ""
    intro = '<p class="soft">The first samples, not chosen; same seed in every column.</p>'
    return f"<h2>Samples</h2>{intro}{''.join(blocks)}"


def _pictures(cells: list[Cell], folder: Path) -> str:
    out = []
    for cell in cells:
        path = folder / cell.picture
        # the name comes from a file; it may not lead out of the folder
        if path.is_file() and path.resolve().is_relative_to(folder.resolve()):
            data = base64.b64encode(path.read_bytes()).decode()
            name = escape(f"{cell.row}, {cell.column}")
            image = f'<img alt="samples of {name}" src="data:image/png;base64,{data}">'
            out.append(f"<figure><figcaption>{name}</figcaption>{image}</figure>")
    return "".join(out)


def _texts(cells: list[Cell]) -> str:
    """Texts; from the second row on, words that differ from the first row's are marked."""
    out = []
    for cell in cells:
        marked = [
            escape(text) if cell is cells[0] else highlight(base, text)
            for base, text in zip(cells[0].samples, cell.samples)
        ]
        body = "".join(f"<p>{text}</p>" for text in marked)
        out.append(f'<div class="text"><strong>{escape(cell.row)}</strong>{body}</div>')
    return "".join(out)


def highlight(base: str, text: str) -> str:
    """`text` as HTML with the words that are not in the same place in `base` marked."""
    old, new = base.split(" "), text.split(" ")
    out = []
    for kind, _, _, start, stop in difflib.SequenceMatcher(None, old, new, autojunk=False).get_opcodes():
        words = escape(" ".join(new[start:stop]))
        if words:
            out.append(words if kind == "equal" else f"<mark>{words}</mark>")
    return " ".join(out)


def curves(run: Path | None) -> str:
    """Training curves from metrics.jsonl, thinned to a few hundred points."""
    rows = _rows(run / "metrics.jsonl") if run is not None else []
    names = [
        key
        for key in ("loss", "distil", "consis", "corr", "marginal", "reconstruction", "kl", "prior_loss")
        if any(key in row for row in rows)
    ]
    charts: list[str] = []
    for name in names:
        points = [
            (float(i + 1), row[name]) for i, row in enumerate(rows) if isinstance(row.get(name), (int, float))
        ]
        if len(points) < 2:
            continue
        series = [Series(name, 1, _thin(points), dots=False)]
        size = SMALL if charts else LARGE
        svg = line_chart(series, "iteration", f"{name} in training", log_x=False, size=size)
        charts.append(f"<figure><figcaption>{escape(name)}</figcaption>{svg}</figure>")
    return f'<h2>Training</h2><div class="charts">{"".join(charts)}</div>' if charts else ""


def _rows(path: Path) -> list[dict[str, Any]]:
    """The lines of a training record that are whole; training's own reader would bring torch along."""
    out = []
    for line in path.read_text(encoding="utf-8").splitlines() if path.is_file() else []:
        try:
            row = json.loads(line)
        except ValueError:
            continue  # a line torn by a kill
        if isinstance(row, dict):
            out.append(row)
    return out


def _thin(points: list[tuple[float, float]], limit: int = 300) -> list[tuple[float, float]]:
    """Means over equal groups, so that the curve is smooth and the page small."""
    size = max(1, -(-len(points) // limit))
    groups = [points[i : i + size] for i in range(0, len(points), size)]
    return [(group[-1][0], sum(y for _, y in group) / len(group)) for group in groups]


def recipe(run: Path | None) -> str:
    """The resolved recipe."""
    path = None if run is None else run / "recipe.yaml"
    if path is None or not path.is_file():
        return ""
    return f"<h2>Recipe</h2>{folded('recipe.yaml', path.read_text(encoding='utf-8'))}"


def provenance(results: Results) -> str:
    """Models, instruments and versions."""
    models = [
        [m.row, m.name, m.ref, m.revision or "–", m.digest, f"{m.parameters:,}", m.teacher or "–"]
        for m in results.models
    ]
    judges = [
        [i.name, i.kind, i.digest, i.reference, str(i.reference_n or "–"), i.reference_digest or "–"]
        for i in results.instruments
    ]
    settings = [
        [
            c.row,
            c.column,
            str(c.n),
            str(c.seed),
            c.labels,
            ", ".join(f"{k} {v}" for k, v in c.settings.items()),
        ]
        for c in results.cells
    ]
    versions = ", ".join(f"{name} {version}" for name, version in results.packages.items())
    typed = f"<p><code>{escape(results.command)}</code></p>" if results.command else ""
    return (
        "<h2>How these figures were obtained</h2>"
        + table(["row", "model", "from", "revision", "hash", "weights", "teacher"], models, wide=True)
        + table(["measured by", "kind", "hash", "reference", "size", "hash"], judges, wide=True)
        + "<details><summary>Sampling settings of every cell</summary>"
        + table(["model", "sampling", "n", "seed", "labels", "settings"], settings, wide=True)
        + f'</details><p class="soft">{escape(versions)}; {escape(results.device)}, '
        f"{results.threads} threads; {escape(results.created)}; {results.seconds:.0f} s; protocol "
        f"{escape(results.protocol)}.</p>" + typed
    )
