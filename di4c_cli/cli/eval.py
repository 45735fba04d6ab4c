"""`di4c eval`: teacher and student measured at several step counts, or a named protocol of the paper."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from di4c_cli.cli.console import emit_json, guarded, progress, say, show_table
from di4c_cli.errors import UserError

if TYPE_CHECKING:
    from di4c_cli.evaluation.result import Results


def eval(
    student: Annotated[str | None, typer.Option(help="Student or run folder, Hub id or name.")] = None,
    teacher: Annotated[
        str | None, typer.Option(help="Teacher; default: the one the student came from.")
    ] = None,
    steps: Annotated[str | None, typer.Option(help="Sampling steps, e.g. 1,2,4,8.")] = None,
    n: Annotated[int | None, typer.Option("-n", min=2, help="Samples for each model and step count.")] = None,
    seed: Annotated[int, typer.Option(min=0, help="Seed of the samples.")] = 0,
    json: Annotated[bool, typer.Option("--json", help="The result as one JSON object on stdout.")] = False,
    out: Annotated[Path | None, typer.Option(help="Folder for results.json, the plot and the page.")] = None,
    device: Annotated[str, typer.Option(help="cpu, cuda, mps.")] = "cpu",
) -> None:
    """Measure quality against steps; writes a table, results.json, a plot and one HTML page."""
    guarded(lambda: _eval(student, teacher, steps, n, seed, json, out, device))


def _eval(
    student: str | None,
    teacher: str | None,
    steps: str | None,
    n: int | None,
    seed: int,
    json: bool,
    out: Path | None,
    device: str,
) -> None:
    from di4c_cli.evaluation.order import Order, fulfil
    from di4c_cli.report.locate import run_of
    from di4c_cli.report.write import write_all

    order = Order(
        student=student, teacher=teacher, steps=parse_steps(steps), n=n, seed=seed, out=out, device=device
    )
    prepared = fulfil(order, say)
    say(prepared.announcement())
    with progress("samples", prepared.total) as advance:
        results = prepared.run(advance)
    written = write_all(results, prepared.out, prepared.main, run_of(prepared.out))
    if json:
        emit_json(results.model_dump(mode="json"))
    else:
        show(results, prepared.main)
    for path in written:
        say(f"wrote {path}")


def parse_steps(text: str | None) -> list[int] | None:
    """`1,2,4` as numbers."""
    if text is None:
        return None
    try:
        steps = [int(word) for word in text.split(",")]
    except ValueError:
        raise UserError(f"--steps {text} is not a list of numbers.", "Write e.g. --steps 1,2,4,8.") from None
    if min(steps) < 1:
        raise UserError(f"{min(steps)} sampling steps are too few.", "Use --steps 1 or more.")
    return list(dict.fromkeys(steps))


def show(results: Results, main: str) -> None:
    """The table on stdout, and what it says in one line."""
    from di4c_cli.report.summary import speed_up
    from di4c_cli.report.table import overview

    header, rows = overview(results)
    show_table(f"{results.title}, n = {results.cells[0].n}, seed {results.cells[0].seed}", header, rows)
    for line in speed_up(results, main):
        print(line)
    for note in results.notes:
        print(f"Note: {note}")
