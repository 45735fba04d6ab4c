"""The files of an evaluation: results.json, the plots and the page."""

from __future__ import annotations

from pathlib import Path

from di4c_cli import files
from di4c_cli.evaluation.result import Results
from di4c_cli.report.page import write_page
from di4c_cli.report.plot import steps_png, tradeoff_png
from di4c_cli.report.summary import is_frontier


def write_all(results: Results, out: Path, main: str, run: Path | None = None) -> list[Path]:
    """Write everything a reader needs; gives the paths."""
    paths = [out / "results.json"]
    results.save(paths[0])
    if main and any(cell.steps is not None for cell in results.cells):
        paths.append(out / "quality.png")
        picture = tradeoff_png(results, main) if is_frontier(results) else steps_png(results, main)
        files.write_bytes(paths[-1], picture)
    return [*paths, write_page(results, out, run)]
