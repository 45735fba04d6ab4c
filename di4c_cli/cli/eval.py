"""`di4c eval`: teacher and student measured at several step counts, or a named protocol of the paper."""

from __future__ import annotations

import math
import sys
from dataclasses import replace
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, TypeVar

import typer

from di4c_cli.cli.console import command_line, emit, emit_json, progress, say, show_table, silent
from di4c_cli.cli.processes import Oversubscribe, Processes, launch_again
from di4c_cli.errors import UserError
from di4c_cli.schema import MAX_REPEATS, MAX_SAMPLES, MAX_SEED, MAX_STEPS

if TYPE_CHECKING:
    from di4c_cli.evaluation.config import EvaluationConfig
    from di4c_cli.evaluation.protocol import EvaluationProtocol
    from di4c_cli.evaluation.results import Results
    from di4c_cli.process_group import ProcessGroup

Number = TypeVar("Number", int, float)


def eval(
    student: Annotated[str | None, typer.Option(help="Student or run folder, Hub id or name.")] = None,
    teacher: Annotated[str | None, typer.Option(help="Teacher; default: the one the student came from.")] = None,
    model: Annotated[list[str] | None, typer.Option(help="Further rows under any name, e.g. di4c-d=runs/b.")] = None,
    protocol: Annotated[
        str | None, typer.Option(help="A table or figure of the paper, or of a toy task; `list` shows them.")
    ] = None,
    steps: Annotated[str | None, typer.Option(help="Sampling steps, e.g. 1,2,4,8.")] = None,
    block: Annotated[
        int | None, typer.Option(help="Fill blocks of N positions from left to right; they divide the steps equally.")
    ] = None,
    temperatures: Annotated[str | None, typer.Option(help="Frontier over temperatures, e.g. 0.8,1.")] = None,
    sample_dtype: Annotated[
        str | None, typer.Option(help="Draws: float64 (default), float32 (published), or float32,float64.")
    ] = None,
    precision: Annotated[str, typer.Option(help="Of networks and judge: fp32 (TF32 on CUDA) or bf16.")] = "fp32",
    n: Annotated[
        int | None, typer.Option("-n", min=1, max=MAX_SAMPLES, help="Samples for each model and step count.")
    ] = None,
    limit: Annotated[
        int | None, typer.Option(min=1, max=MAX_SAMPLES, help="Upper limit of the samples per cell.")
    ] = None,
    label: Annotated[
        str | None, typer.Option(help="Classes of all models: `all` in turn (default), `none`, or one, e.g. 3.")
    ] = None,
    seed: Annotated[int, typer.Option(min=0, max=MAX_SEED, help="Seed of the samples.")] = 0,
    repeats: Annotated[
        int | None, typer.Option(min=1, max=MAX_REPEATS, help="Independent repeats with further seeds; default: 1.")
    ] = None,
    judge: Annotated[str | None, typer.Option(help="Causal judge: Hub id, folder or .gguf file.")] = None,
    features: Annotated[Path | None, typer.Option(help="TorchScript feature network (Inception).")] = None,
    feature_input: Annotated[str, typer.Option(help="Its input: bytes, tf299, tf299-stretched, torch299.")] = "bytes",
    reference: Annotated[Path | None, typer.Option(help="Real images, their .npz statistics, or texts.")] = None,
    prompts: Annotated[Path | None, typer.Option(help="Prompts to continue, one per line, or ids (.npy).")] = None,
    samples: Annotated[Path | None, typer.Option(help="Measure samples from a file, not a model.")] = None,
    json: Annotated[bool, typer.Option("--json", help="The result as one JSON object on stdout.")] = False,
    out: Annotated[Path | None, typer.Option(help="Folder for results.json, the plot and the page.")] = None,
    device: Annotated[str | None, typer.Option(help="cpu, cuda or mps; default: cuda if there is one.")] = None,
    processes: Processes = None,
    oversubscribe: Oversubscribe = False,
) -> None:
    """Measure quality against steps; writes a table, results.json, a plot and one HTML page."""
    if protocol == "list":
        _list_protocols()
        return
    if samples is not None and processes not in (None, 1):
        raise UserError("--samples is measured by one process.", "Leave --processes out.")
    launch_again(processes, device, oversubscribe)  # before torch is imported, which every process does itself
    from di4c_cli.evaluation.config import EvaluationConfig, ScorerOptions
    from di4c_cli.evaluation.models import parse_rows
    from di4c_cli.process_group import process_group

    config = EvaluationConfig(
        student=student,
        teacher=teacher,
        others=parse_rows(model or []),
        protocol=protocol,
        steps=parse_numbers(steps, "--steps", int),
        temperatures=parse_numbers(temperatures, "--temperatures", float),
        block=block,
        dtypes=None if sample_dtype is None else list(dict.fromkeys(sample_dtype.split(","))),
        labels=parse_label(label),
        precision=precision,
        n=n,
        limit=limit,
        seed=seed,
        repeats=repeats,
        out=out,
        options=ScorerOptions(judge, features, reference, feature_input=feature_input, precision=precision),
        prompts=prompts,
    )
    with process_group(device) as group:
        config = replace(config, options=replace(config.options, device=group.device))
        if samples is None:
            _eval(config, json, group)
        elif group.main:
            _eval_file(samples, config, json)


def _eval(config: EvaluationConfig, json: bool, group: ProcessGroup) -> None:
    from di4c_cli.evaluation.pipeline import expand, prepare
    from di4c_cli.evaluation.results import run_folder
    from di4c_cli.report.page import write_all

    done: list[Results] = []
    for one in expand(config):
        evaluation = prepare(one, say if group.main else silent)
        with group.locked(evaluation.out):
            if not group.main:
                evaluation.run(group=group)
                continue
            say(evaluation.announcement())
            with progress("samples", evaluation.total) as advance:
                results = with_command(evaluation.run(advance, group))
            done.append(results)
            written = write_all(results, evaluation.out, run_folder(evaluation.out))
        if not json:
            show(results, evaluation.protocol if config.protocol else None)
        for path in written:
            say(f"wrote {path}")
    if not group.main:
        return
    if json:
        found = [results.model_dump(mode="json") for results in done]
        emit_json(found[0] if len(found) == 1 else {"evaluations": found})
        return
    show_steps_saved(done)


def _eval_file(path: Path, config: EvaluationConfig, json: bool) -> None:
    from di4c_cli.evaluation.file_evaluation import evaluate_file
    from di4c_cli.evaluation.pipeline import check_out
    from di4c_cli.report.page import write_all

    for flag, value in (("--protocol", config.protocol), ("--sample-dtype", config.dtypes), ("--block", config.block)):
        if value is not None:
            raise UserError(f"--samples measures a file and takes no {flag}.", "Leave one of them out.")
    out = config.out or Path("evaluations") / path.stem
    check_out(out)
    results = with_command(evaluate_file(path, config.options, config.n or config.limit, out))
    for file in write_all(results, out):
        say(f"wrote {file}")
    if json:
        emit_json(results.model_dump(mode="json"))
    else:
        show(results)


def with_command(results: Results) -> Results:
    """The results with the command as the user typed it."""
    return results.model_copy(update={"command": command_line("di4c", *sys.argv[1:])})


def _list_protocols() -> None:
    from di4c_cli.evaluation.protocols import PROTOCOLS, STEPS_SAVED, steps_saved_protocol
    from di4c_cli.tasks.registry import TASKS

    rows = [[name, one.title, str(one.n), str(len(one.cells))] for name, one in PROTOCOLS.items()]
    repeated = [steps_saved_protocol(task) for task in TASKS.values()]
    sizes = [protocol.n for protocol in repeated]
    cells = f"{sum(len(protocol.cells) for protocol in repeated)} x {repeated[0].repeats}"
    title = "steps saved at equal quality, every toy task"
    rows.append([STEPS_SAVED, title, f"{min(sizes)}-{max(sizes)}", cells])
    show_table("Protocols", ["name", "what it measures", "samples", "cells"], rows)


def parse_numbers(text: str | None, flag: str, kind: type[Number]) -> list[Number] | None:
    """`0.8,1` as numbers above zero, each once."""
    if text is None:
        return None
    try:
        numbers = [kind(word) for word in text.split(",")]
    except ValueError:
        whole = "whole numbers" if kind is int else "numbers"
        raise UserError(f"{flag} {text} is not a list of {whole}.", f"Write e.g. {flag} 1,2,4.") from None
    if kind is int and max(numbers) > MAX_STEPS:
        raise UserError(f"{flag} {text} contains a number above {MAX_STEPS}.", f"Write e.g. {flag} 1,2,4.")
    if not all(0 < number < math.inf for number in numbers):
        raise UserError(f"{flag} {text} contains a number that is not above 0.", f"Write e.g. {flag} 1,2,4.")
    return list(dict.fromkeys(numbers))


def show_steps_saved(done: list[Results]) -> None:
    """Print the steps that students save, if the results have repeats."""
    from di4c_cli.report.table import steps_saved_caption, steps_saved_rows

    rows = [row for results in done for row in steps_saved_rows(results)]
    if rows:
        show_table("Steps saved at equal quality", list(rows[0]), [list(row.values()) for row in rows])
        emit(steps_saved_caption(done[0]))


def parse_label(text: str | None) -> str | None:
    """`all`, `none` or the number of a class as a rule of a protocol."""
    if text is None or text == "none":
        return text
    if text != "all" and not (text.isascii() and text.isdecimal() and len(text) < 10):
        raise UserError(f"--label {text} is neither a class nor `all` nor `none`.", "Write e.g. --label 3.")
    return "uniform" if text == "all" else text


def show(results: Results, protocol: EvaluationProtocol | None = None) -> None:
    """Print tables, in the paper's shape for its protocols, and a summary in sentences."""
    from di4c_cli.report.summary import sentences
    from di4c_cli.report.table import overview, protocol_tables

    first = results.cells[0]
    repeats = f", {first.repeats} repeats" if first.repeats > 1 else ""
    title = f"{results.title}, n = {first.n}, seed {first.seed}{repeats}"
    if protocol is None or not results.metrics:
        tables, beside = [overview(results)], ""
    else:
        tables = protocol_tables(results, protocol)
        beside = "; the paper's figures in brackets" if any(cell.paper for cell in protocol.cells) else ""
    for printed in tables:
        named = f"{printed.title}: " if printed.title else ""
        show_table(f"{named}{title}{beside}", printed.header, printed.rows)
        if printed.caption:
            emit(printed.caption)
    for cell in results.cells if not results.metrics else []:
        for text in cell.samples:
            emit(f"{cell.row}, {cell.column}: {text}", lines=True)
    for note in results.notes:
        emit(f"Note: {note}")
    for line in results.headline or sentences(results):
        emit(line)
