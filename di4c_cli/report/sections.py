"""Sections of the page: HTML from results or a run folder, empty when there is nothing to show."""

from __future__ import annotations

import base64
import difflib
from html import escape
from pathlib import Path

from di4c_cli.evaluation.results import Cell, Results
from di4c_cli.files import real_path
from di4c_cli.foreign.regular import read_bytes
from di4c_cli.foreign.structured import MAX_YAML_BYTES
from di4c_cli.methods import METHODS
from di4c_cli.printable import printable
from di4c_cli.report.charts import (
    LARGE,
    PAGE_COLOURS,
    ROW_COLOURS,
    SMALL,
    Chart,
    Line,
    as_svg,
    drawable,
    is_tradeoff,
    row_colour,
    steps_chart,
    tradeoff_chart,
)
from di4c_cli.report.summary import is_frontier
from di4c_cli.report.table import overview, steps_saved_caption, steps_saved_rows
from di4c_cli.training.run_folder import read_rows

CURVES = tuple(dict.fromkeys(name for config in METHODS.values() for name in config.live_metrics))
"""Metrics of a training record that are drawn: the live metrics of all methods."""
OLD_CURVES = {"reconstruction": "explained", "prior_loss": "law"}
"""Their names in records of di4c 0.1."""
CURVE_POINTS = 300
MAX_PICTURE_BYTES = 50 * 2**20
"""The pictures of an evaluation have some kilobytes; the page holds them in base64."""


def html_text(text: object, limit: int | None = 500, lines: bool = False) -> str:
    """A foreign text as HTML."""
    return escape(printable(text, limit, lines))


def html_table(header: list[str], rows: list[list[str]], wide: bool = False) -> str:
    """A table that scrolls sideways on a narrow screen."""
    mark = ' class="wide"' if wide else ""
    head = "".join(f"<th{mark}>{html_text(text)}</th>" for text in header)
    body = "".join("<tr>" + "".join(f"<td{mark}>{html_text(text)}</td>" for text in row) + "</tr>" for row in rows)
    return f'<div class="scroll"><table><thead><tr>{head}</tr></thead><tbody>{body}</tbody></table></div>'


def legend(results: Results) -> str:
    """The colour of each row."""
    keys = []
    for row in dict.fromkeys(cell.row for cell in results.cells):
        colour = PAGE_COLOURS[row_colour(results, row)]
        keys.append(f'<span class="key" style="background: {colour}"></span>{html_text(row)}')
    return f'<p class="soft">{"".join(keys)} <span>&nbsp; bars: 95 % intervals</span></p>'


def quality(results: Results) -> str:
    """Charts of every metric against steps or of the trade-off, the table of all figures, and the steps saved."""
    main, tradeoff = results.main_figure, is_tradeoff(results)
    charts = [] if is_frontier(results) else [steps_chart(results, metric) for metric in results.metrics]
    if is_frontier(results):
        steps = sorted({cell.steps for cell in results.cells if cell.steps is not None})
        charts = [tradeoff_chart(results, main, count) for count in steps]
    elif tradeoff:
        charts.insert(0, tradeoff_chart(results, main))
    table = overview(results)
    title = "Trade-off" if tradeoff else "Quality against steps"
    caption = f'<p class="soft">{html_text(table.caption, None)}</p>'
    figures = f"<h3>Figures</h3>{html_table(table.header, table.rows)}{caption}"
    return f"<h2>{title}</h2>{legend(results)}{chart_grid(charts)}{figures}{steps_saved(results)}"


def chart_grid(charts: list[Chart]) -> str:
    """Charts beside each other, the first one large."""
    out: list[str] = []
    for chart in charts:
        svg = as_svg(chart, SMALL if out else LARGE)
        if svg:
            caption = chart.title.removesuffix(" against steps").removesuffix(" in training")
            out.append(f"<figure><figcaption>{html_text(caption)}</figcaption>{svg}</figure>")
    return f'<div class="charts">{"".join(out)}</div>'


def steps_saved(results: Results) -> str:
    """The summary of a repeated evaluation."""
    rows = steps_saved_rows(results)
    if not rows:
        return ""
    table = html_table(list(rows[0]), [list(row.values()) for row in rows])
    note = html_text(steps_saved_caption(results), None)
    return f'<h3>Steps saved at equal quality</h3>{table}<p class="soft">{note}</p>'


def samples(results: Results, folder: Path) -> str:
    """The first samples of every row at equal steps and with the same seed, side by side."""
    blocks = []
    for column in dict.fromkeys(cell.column for cell in results.cells):
        cells = [cell for cell in results.cells if cell.column == column and (cell.samples or cell.picture)]
        if not cells:
            continue
        shown = _texts(cells) if cells[0].samples else _pictures(cells, folder)
        if shown:
            blocks.append(f'<h3>{html_text(column)}</h3><div class="pair">{shown}</div>')
    if not blocks:
        return ""
    intro = '<p class="soft">The first samples, without selection; same seed in every column.</p>'
    return f"<h2>Samples</h2>{intro}{''.join(blocks)}"


def _pictures(cells: list[Cell], folder: Path) -> str:
    out = []
    for cell in cells:
        name = f"{cell.row}, {cell.column}"
        image = picture(cell.picture, folder, f"samples of {name}")
        out.append(f"<figure><figcaption>{html_text(name)}</figcaption>{image}</figure>" if image else "")
    return "".join(out)


def picture(name: str, folder: Path, alt: str) -> str:
    """A PNG file of the folder inside the page; empty if there is none."""
    path = folder / name
    # the name comes from a file and must not lead out of the folder
    if not name or not path.is_file() or not real_path(path).is_relative_to(real_path(folder)):
        return ""
    data = base64.b64encode(read_bytes(path, MAX_PICTURE_BYTES, "picture")).decode()
    return f'<img alt="{html_text(alt)}" src="data:image/png;base64,{data}">'


def _texts(cells: list[Cell]) -> str:
    """Texts; from the second row on, words that differ from the first row's are marked."""
    out = []
    for cell in cells:
        marked = [
            html_text(text, None, lines=True) if cell is cells[0] else highlight(base, text)
            for base, text in zip(cells[0].samples, cell.samples)
        ]
        body = "".join(f"<p>{text}</p>" for text in marked)
        out.append(f'<div class="text"><strong>{html_text(cell.row)}</strong>{body}</div>')
    return "".join(out)


def highlight(base: str, text: str) -> str:
    """`text` as HTML with the words that are not in the same place in `base` marked."""
    old, new = base.split(" "), text.split(" ")
    out = []
    for kind, _, _, start, stop in difflib.SequenceMatcher(None, old, new, autojunk=False).get_opcodes():
        words = html_text(" ".join(new[start:stop]), None, lines=True)
        if words:
            out.append(words if kind == "equal" else f"<mark>{words}</mark>")
    return " ".join(out)


def curves(run: Path | None) -> str:
    """Training curves from metrics.jsonl, averaged to a few hundred points."""
    rows = read_rows(run / "metrics.jsonl") if run is not None else []
    charts = []
    for name in CURVES:
        values = [row.get(name, row.get(OLD_CURVES.get(name, name))) for row in rows]
        points = [(float(i), value) for i, value in enumerate(values, 1) if value is not None and drawable(value)]
        if len(points) > 1:
            # means over equal groups keep the curve smooth and the page small
            size = -(-len(points) // CURVE_POINTS)
            groups = [points[i : i + size] for i in range(0, len(points), size)]
            means = [(group[-1][0], sum(y for _, y in group) / len(group)) for group in groups]
            line = Line(name, ROW_COLOURS["student"], means, markers=False)
            charts.append(Chart(f"{name} in training", "iteration", name, [line]))
    return f"<h2>Training</h2>{chart_grid(charts)}" if charts else ""


def recipe(run: Path | None) -> str:
    """The resolved recipe."""
    path = None if run is None else run / "recipe.yaml"
    if path is None or not path.is_file():
        return ""
    text = html_text(read_bytes(path, MAX_YAML_BYTES, "recipe").decode("utf-8", "replace"), None, lines=True)
    return f"<h2>Recipe</h2><details><summary>recipe.yaml</summary><pre>{text}</pre></details>"


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
    settings = []
    for cell in results.cells:
        named = ", ".join(f"{key} {value}" for key, value in cell.settings.items())
        settings.append([cell.row, cell.column, str(cell.n), str(cell.seed), cell.labels, named])
    versions = ", ".join(f"{name} {version}" for name, version in results.packages.items())
    typed = f"<p><code>{html_text(results.command, None)}</code></p>" if results.command else ""
    return (
        "<h2>How these figures were obtained</h2>"
        + html_table(["row", "model", "from", "revision", "hash", "weights", "teacher"], models, wide=True)
        + html_table(["measured by", "kind", "hash", "reference", "size", "hash"], judges, wide=True)
        + "<details><summary>Sampling settings of every cell</summary>"
        + html_table(["model", "sampling", "n", "seed", "labels", "settings"], settings, wide=True)
        + f'</details><p class="soft">{html_text(versions)}; {html_text(results.device)}, '
        f"{results.threads} threads; {html_text(results.created)}; {results.seconds:.0f} s; protocol "
        f"{html_text(results.protocol)}.</p>" + typed
    )
