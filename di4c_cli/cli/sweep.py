"""`di4c sweep`: train every row of an ablation table and print the table."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

from di4c_cli import files, recipe_file
from di4c_cli.cli.console import emit_json, guarded, say, show_table
from di4c_cli.cli.live import LiveTable
from di4c_cli.training.sweep_recipe import Sweep, read_sweep, row_recipes

if TYPE_CHECKING:
    from di4c_cli.evaluation.results import Results


def sweep(
    recipe: Annotated[str, typer.Argument(help="A sweep from `di4c recipes`, e.g. ablations/alpha.")],
    base: Annotated[str | None, typer.Option(help="Recipe that the rows modify; default: the sweep's own.")] = None,
    teacher: Annotated[
        str | None, typer.Option("--teacher", "-t", help="Teacher of all rows; default: the recipe's.")
    ] = None,
    data: Annotated[str | None, typer.Option(help="Data of all rows; default: the recipe's.")] = None,
    iterations: Annotated[int | None, typer.Option(help="Training steps of every row.")] = None,
    samples: Annotated[int | None, typer.Option(min=2, help="Samples per figure.")] = None,
    seed: Annotated[int, typer.Option(help="Seed of training and sampling.")] = 0,
    out: Annotated[Path | None, typer.Option(help="Folder of the runs; default: runs/sweep-<name>-s<seed>.")] = None,
    settings: Annotated[list[str] | None, typer.Option("--set", help="Any recipe value, for all rows.")] = None,
    device: Annotated[str | None, typer.Option(help="cpu, cuda or mps; default: cuda if there is one.")] = None,
    as_json: Annotated[bool, typer.Option("--json", help="Print the figures as one JSON object.")] = False,
) -> None:
    """Train every row of an ablation and print the paper's table; run it again to resume."""
    flags = {"teacher": teacher, "data": data, "training.iterations": iterations, "seed": seed}

    def command() -> None:
        overrides = {key: value for key, value in flags.items() if value is not None}
        overrides |= dict(recipe_file.parse_assignment(text) for text in settings or [])
        table = read_sweep(recipe)
        folder = out or Path("runs") / f"sweep-{table.name.replace('/', '-')}-s{seed}"
        _run(table, base, overrides, folder, samples or table.samples, seed, device, as_json)

    guarded(command)


def _run(
    table: Sweep,
    base: str | None,
    overrides: dict[str, Any],
    out: Path,
    samples: int,
    seed: int,
    device: str | None,
    as_json: bool,
) -> None:
    from di4c_cli.training.processes import training_device
    from di4c_cli.training.run import RunOptions
    from di4c_cli.training.sweep import measure_rows, train_row

    rows = row_recipes(table, base, overrides)
    for number, (row, recipe) in enumerate(rows, 1):
        say(f"{number}/{len(rows)} {row.label}")
        with LiveTable(recipe) as live:
            train_row(recipe, out / row.folder, RunOptions(device=device, report=live, say=say))
    results = measure_rows(table, rows, out, samples, seed, training_device(device))
    files.write_text(out / "results.json", results.model_dump_json(indent=2))
    if as_json:
        emit_json(results.model_dump(mode="json"))
    else:
        show_table(f"{table.summary}, {samples} samples", *paper_table(results, table.metrics))
    say(f"Figures: {out / 'results.json'}")


def paper_table(results: Results, metrics: list[str]) -> tuple[list[str], list[list[str]]]:
    """Methods down, step counts across, each with its metrics: the shape of the paper's ablation tables."""
    columns = list(dict.fromkeys(cell.column for cell in results.cells))
    rows: dict[str, dict[str, Any]] = {}
    for cell in results.cells:
        rows.setdefault(cell.row, {})[cell.column] = cell.figures
    names = [metric for metric in metrics if any(metric in cell.figures for cell in results.cells)]
    names = names or sorted(results.cells[0].figures)[:2]
    head = ["method", *(f"{column}, {name}" for column in columns for name in names)]
    body = [
        [row, *(_figure(found[column].get(name)) for column in columns for name in names)]
        for row, found in rows.items()
    ]
    return head, body


def _figure(figure: Any) -> str:
    if figure is None:
        return "-"
    return f"{figure.value:.3f}" if figure.se is None else f"{figure.value:.3f} ± {figure.se:.3f}"
