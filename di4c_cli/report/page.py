"""One self-contained HTML page: no network, no script, the result file inside."""

from __future__ import annotations

from html import escape
from pathlib import Path

from di4c_cli import files
from di4c_cli.evaluation.result import Results
from di4c_cli.report import sections
from di4c_cli.report.latency import latency
from di4c_cli.report.summary import sentences
from di4c_cli.report.table import NAMES


def page(results: Results, folder: Path, run: Path | None = None) -> str:
    """The page of an evaluation in `folder`; `run` adds recipe and training curves."""
    title = escape(results.title)
    main = results.metrics[0] if results.metrics else ""
    headline = "".join(
        f'<p class="headline">{escape(line)}</p>' for line in (sentences(results, main) if main else [])
    )
    notes = "".join(f"<li>{escape(note)}</li>" for note in _notes(results))
    style = Path(__file__).with_name("page.css").read_text(encoding="utf-8")
    count, seed = (results.cells[0].n, results.cells[0].seed) if results.cells else (0, 0)
    parts = [
        f"<h1>{title}</h1>",
        f'<p class="soft">Protocol {escape(results.protocol)}; {count} samples a cell, seed {seed}; '
        f"{escape(', '.join(i.name for i in results.instruments))}; {escape(results.created[:10])}</p>",
        headline,
        sections.quality(results),
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
    """The result's notes, then what single figures say about themselves, each once."""
    where: dict[str, list[str]] = {}
    for cell in results.cells:
        for metric, figure in cell.figures.items():
            if "bias" in figure.note:
                where.setdefault(f"{NAMES.get(metric, metric)} is {figure.note}", []).append(cell.row)
    return [*results.notes, *(f"{note} ({len(rows)} cells)." for note, rows in where.items())]


def write_page(results: Results, folder: Path, run: Path | None = None, path: Path | None = None) -> Path:
    """Write the page, whole or not at all."""
    target = path or folder / "report.html"
    files.write_text(target, page(results, folder, run))
    return target
