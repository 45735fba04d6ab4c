"""`di4c report`: one self-contained HTML page of a run or an evaluation."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

import typer

from di4c_cli.cli.console import emit, output_file


def report(
    run: Annotated[
        Path | None, typer.Argument(help="A run, an evaluation folder or a results.json; default: the newest here.")
    ] = None,
    out: Annotated[Path | None, typer.Option(help="The HTML file; default: report.html beside the results.")] = None,
) -> None:
    """Write one HTML page: figures, samples, latency, training curves, recipe, provenance and the results as JSON."""
    from di4c_cli.evaluation.results import load, run_folder
    from di4c_cli.report.page import locate, write_page

    target = None if out is None else output_file(out)
    file = locate(run)
    emit(write_page(load(file), file.parent, run_folder(file.parent), target))
