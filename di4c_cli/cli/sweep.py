"""`di4c sweep`: train every row of an ablation table and print the table."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

import typer

from di4c_cli import files, recipe_file
from di4c_cli.cli.console import emit_json, file_name, say, show_table
from di4c_cli.cli.live import LiveTable
from di4c_cli.schema import MAX_SAMPLES
from di4c_cli.training.sweep_recipe import read_sweep, row_recipes


def sweep(
    recipe: Annotated[str, typer.Argument(help="A sweep from `di4c recipes`, e.g. ablations/alpha.")],
    base: Annotated[str | None, typer.Option(help="Recipe that the rows modify; default: the sweep's own.")] = None,
    teacher: Annotated[
        str | None, typer.Option("--teacher", "-t", help="Teacher of all rows; default: the recipe's.")
    ] = None,
    data: Annotated[str | None, typer.Option(help="Data of all rows; default: the recipe's.")] = None,
    iterations: Annotated[int | None, typer.Option(help="Training steps of every row.")] = None,
    samples: Annotated[int | None, typer.Option(min=2, max=MAX_SAMPLES, help="Samples per figure.")] = None,
    seed: Annotated[int, typer.Option(help="Seed of training and sampling.")] = 0,
    out: Annotated[Path | None, typer.Option(help="Folder of the runs; default: runs/sweep-<name>-s<seed>.")] = None,
    settings: Annotated[list[str] | None, typer.Option("--set", help="Any recipe value, for all rows.")] = None,
    device: Annotated[str | None, typer.Option(help="cpu, cuda or mps; default: cuda if there is one.")] = None,
    as_json: Annotated[bool, typer.Option("--json", help="Print the figures as one JSON object.")] = False,
) -> None:
    """Train every row of an ablation and print the paper's table; run it again to resume."""
    flags = {"teacher": teacher, "data": data, "training.iterations": iterations, "seed": seed}
    overrides = {key: value for key, value in flags.items() if value is not None}
    overrides |= dict(recipe_file.parse_assignment(text) for text in settings or [])
    table = read_sweep(recipe)
    folder = out or Path("runs") / f"sweep-{file_name(table.name)}-s{seed}"
    rows = row_recipes(table, base, overrides)

    # after the checks, because torch is slow to import
    from di4c_cli.generate.request import choose_device
    from di4c_cli.report.table import protocol_tables
    from di4c_cli.training.run import RunOptions, distill
    from di4c_cli.training.sweep import measure_rows, sweep_protocol

    for number, (row, resolved) in enumerate(rows, 1):
        say(f"{number}/{len(rows)} {row.label}")
        with LiveTable(resolved) as live:
            distill(resolved, folder / row.folder, RunOptions(device=device, report=live, say=say))
    protocol = sweep_protocol(table, samples or table.samples)
    results = measure_rows(protocol, rows, folder, seed, choose_device(device))
    files.write_text(folder / "results.json", results.model_dump_json(indent=2))
    if as_json:
        emit_json(results.model_dump(mode="json"))
    else:
        for printed in protocol_tables(results, protocol):
            show_table(f"{printed.title}: {table.summary}, {protocol.n} samples", printed.header, printed.rows)
    say(f"Figures: {folder / 'results.json'}")
