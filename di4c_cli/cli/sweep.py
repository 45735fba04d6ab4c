"""`di4c sweep`: train every row of an ablation table or a contest, measure the rows and print the table."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import asdict
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from di4c_cli import recipe_file
from di4c_cli.cli.console import emit, emit_json, file_name, progress, say, show_table, silent
from di4c_cli.cli.eval import show, show_steps_saved, with_command
from di4c_cli.cli.live import LiveTable, duration
from di4c_cli.cli.processes import Oversubscribe, Processes, launch_again
from di4c_cli.errors import Di4cError
from di4c_cli.evaluation.config import ScorerOptions
from di4c_cli.schema import MAX_SAMPLES
from di4c_cli.training.sweep_recipe import read_sweep, row_recipes

if TYPE_CHECKING:
    from di4c_cli.evaluation.protocol import EvaluationProtocol
    from di4c_cli.evaluation.results import Results
    from di4c_cli.evaluation.run import Evaluation
    from di4c_cli.process_group import ProcessGroup
    from di4c_cli.training.sweep import Rows


def sweep(
    recipe: Annotated[str, typer.Argument(help="A sweep from `di4c recipes`, e.g. contest/words.")],
    row: Annotated[list[str] | None, typer.Option(help="Only the row with this label; may be repeated.")] = None,
    seeds: Annotated[
        int | None, typer.Option(min=1, max=64, help="Number of seeds, from --seed on; default: the sweep's own.")
    ] = None,
    base: Annotated[str | None, typer.Option(help="Recipe that the rows modify; default: the sweep's own.")] = None,
    teacher: Annotated[
        str | None, typer.Option("--teacher", "-t", help="Teacher of all rows; default: the recipe's.")
    ] = None,
    data: Annotated[str | None, typer.Option(help="Data of all rows; default: the recipe's.")] = None,
    iterations: Annotated[int | None, typer.Option(help="Training steps of every row; default: the recipe's.")] = None,
    samples: Annotated[
        int | None, typer.Option(min=2, max=MAX_SAMPLES, help="Samples per figure; default: the recipe's.")
    ] = None,
    features: Annotated[Path | None, typer.Option(help="TorchScript feature network (Inception).")] = None,
    feature_input: Annotated[str, typer.Option(help="Its input: bytes, tf299, tf299-stretched, torch299.")] = "bytes",
    reference: Annotated[Path | None, typer.Option(help="Real images or their .npz statistics.")] = None,
    judge: Annotated[str | None, typer.Option(help="Causal judge of texts: Hub id, folder or .gguf file.")] = None,
    seed: Annotated[int, typer.Option(help="First seed of training and sampling.")] = 0,
    out: Annotated[
        Path | None, typer.Option(help="Folder of the runs; default: runs/sweep-<name>[-<base>]-s<seed>.")
    ] = None,
    settings: Annotated[list[str] | None, typer.Option("--set", help="Any recipe value, for all rows.")] = None,
    device: Annotated[str | None, typer.Option(help="cpu, cuda or mps; default: cuda if there is one.")] = None,
    processes: Processes = None,
    oversubscribe: Oversubscribe = False,
    dry_run: Annotated[bool, typer.Option("--dry-run", help="Show what the rows would do; change nothing.")] = False,
    as_json: Annotated[bool, typer.Option("--json", help="Print the figures as one JSON object.")] = False,
) -> None:
    """Train and measure every row of an ablation or a contest and print its table; run it again to resume."""
    flags = {"teacher": teacher, "data": data, "training.iterations": iterations}
    overrides = {key: value for key, value in flags.items() if value is not None}
    overrides |= dict(recipe_file.parse_assignment(text) for text in settings or [])
    table = read_sweep(recipe, row, seeds)
    every = range(seed, seed + table.seeds)
    part = "".join(f"{one.folder}-" for one in table.rows) if row else ""  # the files of the whole sweep stay
    students = [row_recipes(table, base, {"seed": one, **overrides}) for one in every]
    named = [Path(part).stem if part.endswith((".yaml", ".yml")) else part for part in (table.name, base) if part]
    folder = out or Path("runs") / f"sweep-{file_name('-'.join(named))}-s{seed}"
    contest = table.labels is not None  # where another command may add seeds
    folders = [folder / f"s{one}" for one in every] if contest or table.seeds > 1 else [folder]

    # after the checks, because torch is slow to import
    from di4c_cli.process_group import process_group
    from di4c_cli.training.plan import make_batch_plan
    from di4c_cli.training.sweep import prepare_evaluation

    for _, resolved in students[0]:
        make_batch_plan(resolved.training.batch, resolved.training.micro_batch, processes or 1)
    if not dry_run:
        launch_again(processes, device, oversubscribe)
    with process_group(device) as group:
        options = ScorerOptions(judge, features, reference, group.device, feature_input)
        prepare = [
            partial(prepare_evaluation, table, rows, place, one, options, samples, dry_run)
            for rows, place, one in zip(students, folders, every)
        ]
        if dry_run:
            title = f"{table.name} on {students[0][0][1].name}"
            _preview(title, students[0], folders[0], prepare[0], (processes or 1, device, oversubscribe), as_json)
            return
        ready = [one() for one in prepare]  # rejects before the training what would stop it afterwards
        found = [_run(rows, one, device, group, contest, part) for rows, one in zip(students, ready)]
        if group.main:
            _finish(found, folder, f"{part}{table.seeds}-seeds-" if seeds else part, as_json)


def _run(
    rows: Rows, evaluation: Evaluation, device: str | None, group: ProcessGroup, contest: bool, part: str
) -> tuple[Results, EvaluationProtocol]:
    """Train every row with all processes, then divide the evaluation; the main process writes its results."""
    from di4c_cli.report.page import write_all
    from di4c_cli.training.run import RunOptions, distill
    from di4c_cli.training.sweep import with_compute, with_students

    folder, told = evaluation.out, say if group.main else silent
    with group.locked(folder):
        for number, (row, resolved) in enumerate(rows, 1):
            told(f"{number}/{len(rows)} {row.label}, seed {resolved.seed}")
            with LiveTable(resolved) as live:
                options = RunOptions(device=device, report=live, begin=live.begin, say=told, keep_group=True)
                distill(resolved, folder / row.folder, options).check_stop()
        evaluation = with_students(evaluation, rows)
        told(f"Measuring the teacher and {len(rows)} students, {evaluation.n} samples in each cell.")
        with progress("samples", evaluation.total) as advance:
            results = with_command(evaluation.run(advance, group))
        if contest:
            results = with_compute(results, rows, evaluation.models[0].model)
        for path in write_all(results, folder, prefix=part) if group.main else []:
            say(f"wrote {path}")
    return results, evaluation.protocol


def _finish(found: list[tuple[Results, EvaluationProtocol]], folder: Path, part: str, as_json: bool) -> None:
    """Print the results; those of several seeds as one, which is written too, with the prefix `part`."""
    from di4c_cli.report.page import write_all
    from di4c_cli.training.sweep import merge_seeds

    (results, protocol), every = found[0], [one for one, _ in found]
    if len(every) > 1:
        results = merge_seeds(every)
        for path in write_all(results, folder, prefix=part):
            say(f"wrote {path}")
    if as_json:
        emit_json(results.model_dump(mode="json"))
    else:
        show(results, protocol)
        show_steps_saved([results])


def _preview(
    title: str,
    rows: Rows,
    folder: Path,
    prepare: Callable[[], Evaluation],
    processes: tuple[int, str | None, bool],
    as_json: bool,
) -> None:
    """A dry run of every row as a table, and whether the rows can be measured."""
    from di4c_cli.training.dry_run import preview
    from di4c_cli.training.processes import check_processes

    count, device, _ = processes
    check_processes(*processes)
    found = [preview(recipe, folder / row.folder, count, device) for row, recipe in rows]
    measured = "not checked: the teacher is not here"
    try:
        if found[0].teacher == "here":
            evaluation = prepare()
            columns = dict.fromkeys(cell.column for cell in evaluation.protocol.cells)
            measured = f"{evaluation.n} samples in each cell: {', '.join(columns)}"
    except Di4cError as error:
        measured = found[0].note(error)
    if as_json:
        emit_json({"rows": [asdict(one) for one in found], "measured": measured})
    else:
        header = ["row", "iterations", "batch", "memory (MB, estimate)", "s a step", "training time", "folder", "run"]
        body = []
        for (row, recipe), one in zip(rows, found):
            memory = f"{one.memory['total'] / 2**20:,.0f}" if one.memory else "–"
            step = "–" if one.seconds_per_step is None else f"{one.seconds_per_step:.3g}"
            total = "–" if one.total_seconds is None else duration(one.total_seconds)
            sizes = [str(recipe.rounds * recipe.training.iterations), str(recipe.training.batch)]
            body.append([row.label, *sizes, memory, step, total, row.folder, one.run])
        show_table(f"{title}, runs in {folder}", header, body)
        times = [one.total_seconds for one in found if one.total_seconds is not None]
        said = (
            f"{duration(sum(times))} a seed for {len(times)} rows ({found[0].measured})" if times else found[0].measured
        )
        facts = {"teacher": found[0].teacher, "data": found[0].data, "training": said, "measured": measured}
        for name, text in facts.items():
            emit(f"{name:<9} {text}")
    for problem in dict.fromkeys(problem for one in found for problem in one.problems):
        say(f"di4c: {problem}")
    code = max(one.exit_code for one in found)
    if code:
        raise typer.Exit(code)
