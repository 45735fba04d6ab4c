"""`di4c eval`: teacher and student measured at several step counts, or a named protocol of the paper."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from di4c_cli.cli.console import emit_json, guarded, progress, say, show_table, typed_command
from di4c_cli.errors import UserError

if TYPE_CHECKING:
    from di4c_cli.evaluation.config import EvaluationConfig
    from di4c_cli.evaluation.protocol import EvaluationProtocol
    from di4c_cli.evaluation.results import Results


def eval(
    context: typer.Context,
    student: Annotated[str | None, typer.Option(help="Student or run folder, Hub id or name.")] = None,
    teacher: Annotated[str | None, typer.Option(help="Teacher; default: the one the student came from.")] = None,
    model: Annotated[list[str] | None, typer.Option(help="Further rows as ROW=REF, e.g. di4c-d=runs/b.")] = None,
    protocol: Annotated[
        str | None, typer.Option(help="A table or figure of the paper, or tiny-*; `list` shows them.")
    ] = None,
    steps: Annotated[str | None, typer.Option(help="Sampling steps, e.g. 1,2,4,8.")] = None,
    temperatures: Annotated[str | None, typer.Option(help="Frontier over temperatures, e.g. 0.8,1.")] = None,
    n: Annotated[int | None, typer.Option("-n", min=1, help="Samples for each model and step count.")] = None,
    limit: Annotated[int | None, typer.Option(min=1, help="Upper limit of the samples per cell.")] = None,
    seed: Annotated[int, typer.Option(min=0, help="Seed of the samples.")] = 0,
    repeats: Annotated[
        int | None, typer.Option(min=1, help="Independent repeats with further seeds; default: 1.")
    ] = None,
    judge: Annotated[str | None, typer.Option(help="Causal judge: Hub id, folder or .gguf file.")] = None,
    features: Annotated[Path | None, typer.Option(help="TorchScript feature network (Inception).")] = None,
    feature_input: Annotated[str, typer.Option(help="Input of that network: bytes or tf299.")] = "bytes",
    reference: Annotated[Path | None, typer.Option(help="Real images, their .npz statistics, or texts.")] = None,
    prompts: Annotated[Path | None, typer.Option(help="Prompts to continue, one per line, or ids (.npy).")] = None,
    samples: Annotated[Path | None, typer.Option(help="Measure samples from a file, not a model.")] = None,
    json: Annotated[bool, typer.Option("--json", help="The result as one JSON object on stdout.")] = False,
    out: Annotated[Path | None, typer.Option(help="Folder for results.json, the plot and the page.")] = None,
    device: Annotated[str | None, typer.Option(help="cpu, cuda or mps; default: cuda if there is one.")] = None,
) -> None:
    """Measure quality against steps; writes a table, results.json, a plot and one HTML page."""

    def command() -> None:
        if protocol == "list":
            _list_protocols()
            return
        from di4c_cli.evaluation.config import EvaluationConfig, ScorerOptions
        from di4c_cli.evaluation.models import parse_rows
        from di4c_cli.generate.request import choose_device

        config = EvaluationConfig(
            student=student,
            teacher=teacher,
            others=parse_rows(model or []),
            protocol=protocol,
            steps=parse_steps(steps),
            temperatures=parse_numbers(temperatures, "--temperatures"),
            n=n,
            limit=limit,
            seed=seed,
            repeats=repeats,
            out=out,
            options=ScorerOptions(judge, features, reference, choose_device(device), feature_input),
            prompts=prompts,
        )
        typed = typed_command(context)
        if samples is not None:
            _eval_file(samples, config, json, typed)
        else:
            _eval(config, json, typed)

    guarded(command)


def _eval(config: EvaluationConfig, json: bool, typed: str) -> None:
    from di4c_cli.evaluation.pipeline import expand, prepare
    from di4c_cli.evaluation.results import run_folder
    from di4c_cli.report.page import write_all

    done: list[Results] = []
    for one in expand(config):
        evaluation = prepare(one, say)
        say(evaluation.announcement())
        with progress("samples", evaluation.total) as advance:
            results = evaluation.run(advance).model_copy(update={"command": typed})
        done.append(results)
        for path in write_all(results, evaluation.out, run_folder(evaluation.out)):
            say(f"wrote {path}")
        if not json:
            show(results, evaluation.protocol if config.protocol else None)
    if json:
        found = [results.model_dump(mode="json") for results in done]
        emit_json(found[0] if len(found) == 1 else {"evaluations": found})
    else:
        _show_steps_saved(done)


def _eval_file(path: Path, config: EvaluationConfig, json: bool, typed: str) -> None:
    from di4c_cli.evaluation.file_evaluation import evaluate_file
    from di4c_cli.evaluation.pipeline import check_out
    from di4c_cli.report.page import write_all

    if config.protocol is not None:
        raise UserError("--samples measures a file and takes no --protocol.", "Leave one of them out.")
    out = config.out or Path("evaluations") / path.stem
    check_out(out)
    results = evaluate_file(path, config.options, config.n or config.limit, out)
    results = results.model_copy(update={"command": typed})
    for file in write_all(results, out):
        say(f"wrote {file}")
    if json:
        emit_json(results.model_dump(mode="json"))
    else:
        show(results)


def _show_steps_saved(done: list[Results]) -> None:
    """One table of all evaluations that have the summary."""
    from di4c_cli.report.table import steps_saved_rows

    rows = [row for results in done for row in steps_saved_rows(results)]
    if rows:
        show_table("Steps saved at equal quality", list(rows[0]), [list(row.values()) for row in rows])


def _list_protocols() -> None:
    from di4c_cli.evaluation.protocols import PROTOCOLS, STEPS_SAVED, steps_saved_protocol
    from di4c_cli.tasks.registry import TASKS

    rows = [[name, one.title, str(one.n), str(len(one.cells))] for name, one in PROTOCOLS.items()]
    repeated = [steps_saved_protocol(task) for task in TASKS.values()]
    sizes = [protocol.n for protocol in repeated]
    rows.append(
        [
            STEPS_SAVED,
            "steps saved at equal quality, every toy task",
            f"{min(sizes)}-{max(sizes)}",
            f"{sum(len(protocol.cells) for protocol in repeated)} x {repeated[0].repeats}",
        ]
    )
    show_table("Protocols", ["name", "what it measures", "samples", "cells"], rows)


def parse_numbers(text: str | None, flag: str) -> list[float] | None:
    """`0.8,1` as numbers above zero."""
    if text is None:
        return None
    try:
        numbers = [float(word) for word in text.split(",")]
    except ValueError:
        raise UserError(f"{flag} {text} is not a list of numbers.", f"Write e.g. {flag} 1,2,4,8.") from None
    if not all(0 < number < float("inf") for number in numbers):
        raise UserError(f"{flag} {text} contains a number that is not above 0.", f"Write e.g. {flag} 1,2,4.")
    return list(dict.fromkeys(numbers))


def parse_steps(text: str | None) -> list[int] | None:
    """`1,2,4` as whole numbers."""
    numbers = parse_numbers(text, "--steps")
    if numbers is not None and any(number != int(number) for number in numbers):
        raise UserError(f"--steps {text} are not whole numbers.", "Write e.g. --steps 1,2,4,8.")
    return None if numbers is None else [int(number) for number in numbers]


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
    for cell in results.cells if not results.metrics else []:
        for text in cell.samples:
            print(f"{cell.row}, {cell.column}: {text}")
    for line in sentences(results):
        print(line)
    for note in results.notes:
        print(f"Note: {note}")
