"""The files of an evaluation: results.json, the plot and the page."""

from __future__ import annotations

from pathlib import Path

from di4c_cli.evaluation.result import Results
from di4c_cli.report.page import write_page
from di4c_cli.report.plot import save_steps_plot


def write_all(results: Results, out: Path, main: str, run: Path | None = None) -> list[Path]:
    """Write everything a reader needs; gives the paths."""
    paths = [out / "results.json", out / "quality.png"]
    results.save(paths[0])
    save_steps_plot(results, main, paths[1])
    return [*paths, write_page(results, out, run)]
