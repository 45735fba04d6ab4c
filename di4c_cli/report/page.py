"""One self-contained HTML page without network access or scripts, the files beside it, and where they are."""

from __future__ import annotations

from pathlib import Path

from di4c_cli import files
from di4c_cli.errors import UserError
from di4c_cli.evaluation.results import Results
from di4c_cli.report import sections
from di4c_cli.report.charts import as_png, main_chart
from di4c_cli.report.latency import latency
from di4c_cli.report.sections import html_text
from di4c_cli.report.summary import sentences
from di4c_cli.report.table import METRIC_NAMES


def page(results: Results, folder: Path, run: Path | None = None) -> str:
    """The page of an evaluation in `folder`; `run` adds recipe and training curves."""
    title = html_text(results.title)
    ratios = sentences(results)
    headline = "".join(f'<p class="headline">{html_text(line)}</p>' for line in results.headline or ratios)
    below = "".join(f'<p class="soft">{html_text(line)}</p>' for line in ratios if results.headline)
    notes = "".join(f"<li>{html_text(note)}</li>" for note in _notes(results))
    style = Path(__file__).with_name("page.css").read_text(encoding="utf-8")
    first = results.cells[0]
    repeated = f", {first.repeats} repeats" if first.repeats > 1 else ""
    instruments = html_text(", ".join(one.name for one in results.instruments))
    parts = [
        f"<h1>{title}</h1>",
        f'<p class="soft">Protocol {html_text(results.protocol)}; {first.n} samples per cell, seed {first.seed}'
        f"{repeated}; {instruments}; {html_text(results.created[:10])}</p>",
        headline,
        sections.picture(results.comparison, folder, "teacher and student side by side"),
        sections.quality(results),
        below,
        f"<h3>Notes</h3><ul>{notes}</ul>" if notes else "",
        sections.samples(results, folder),
        latency(results, run),
        sections.curves(run),
        sections.recipe(run),
        sections.provenance(results),
    ]
    # "<" inside the JSON could end the script element early
    data = results.model_dump_json().replace("<", "\\u003c")
    return (
        '<!doctype html>\n<html lang="en"><head><meta charset="utf-8">'
        '<meta name="viewport" content="width=device-width, initial-scale=1">'
        '<link rel="icon" href="data:,">'
        f"<title>{title}</title><style>{style}</style></head><body><main>{''.join(parts)}</main>"
        f'<script type="application/json" id="results">{data}</script></body></html>\n'
    )


def _notes(results: Results) -> list[str]:
    """The result's notes, then the notes of single figures about bias, each once."""
    where: dict[str, list[str]] = {}
    for cell in results.cells:
        for metric, figure in cell.figures.items():
            if "bias" in figure.note:
                where.setdefault(f"{METRIC_NAMES.get(metric, metric)} is {figure.note}", []).append(cell.row)
    return [*results.notes, *(f"{note} ({len(rows)} cells)." for note, rows in where.items())]


def write_page(results: Results, folder: Path, run: Path | None = None, path: Path | None = None) -> Path:
    """Write the page, whole or not at all."""
    target = path or folder / "report.html"
    files.write_text(target, page(results, folder, run))
    return target


def write_all(results: Results, out: Path, run: Path | None = None, prefix: str = "") -> list[Path]:
    """Write results.json, the plot and the page, and return their paths; a prefix of their names keeps other files."""
    paths = [out / f"{prefix}results.json"]
    results.save(paths[0])
    if results.main_figure and any(cell.steps is not None for cell in results.cells):
        paths.append(out / f"{prefix}quality.png")
        heading = f"{results.title}, n = {max(cell.n for cell in results.cells)}"
        files.write_bytes(paths[-1], as_png(main_chart(results), heading))
    paths += [out / results.comparison] if results.comparison else []
    return [*paths, write_page(results, out, run, out / f"{prefix}report.html")]


def locate(path: Path | None) -> Path:
    """The results.json of a run, an evaluation folder or its results.json; without a path the newest in this folder."""
    if path is None:
        found = [*Path("runs").glob("*/evaluation/results.json"), *Path("evaluations").glob("**/results.json")]
        if not found:
            raise UserError("There is no evaluation here yet.", "Run `di4c eval` first.")
        path = max(found, key=lambda file: file.stat().st_mtime)
    if not path.exists():
        raise UserError(f"There is no {path}.", "Name a run or an evaluation.")
    names = ("", "results.json", "evaluation/results.json")
    file = next((path / name for name in names if (path / name).is_file()), None)
    if file is None:
        raise UserError(f"{path} has no evaluation.", f"Run `di4c eval --student {path}` first.")
    return file
