"""`di4c eval`: teacher and student measured at several step counts, or a named protocol of the paper."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from di4c_cli.cli.console import emit_json, guarded, progress, say, show_table, typed_command
from di4c_cli.errors import UserError

if TYPE_CHECKING:
    from di4c_cli.evaluation.order import Order
    from di4c_cli.evaluation.plan import Plan
    from di4c_cli.evaluation.result import Results


def eval(
    context: typer.Context,
    student: Annotated[str | None, typer.Option(help="Student or run folder, Hub id or name.")] = None,
    teacher: Annotated[
        str | None, typer.Option(help="Teacher; default: the one the student came from.")
    ] = None,
    model: Annotated[
        list[str] | None, typer.Option(help="Further rows as ROW=REF, e.g. di4c-d=runs/b.")
    ] = None,
    protocol: Annotated[
        str | None, typer.Option(help="A table or figure of the paper, or tiny-*; `list` shows them.")
    ] = None,
    steps: Annotated[str | None, typer.Option(help="Sampling steps, e.g. 1,2,4,8.")] = None,
    temperatures: Annotated[str | None, typer.Option(help="Frontier over temperatures, e.g. 0.8,1.")] = None,
    n: Annotated[int | None, typer.Option("-n", min=1, help="Samples for each model and step count.")] = None,
    limit: Annotated[int | None, typer.Option(min=1, help="At most so many samples a cell.")] = None,
    seed: Annotated[int, typer.Option(min=0, help="Seed of the samples.")] = 0,
    judge: Annotated[str | None, typer.Option(help="Causal judge: Hub id, folder or .gguf file.")] = None,
    features: Annotated[Path | None, typer.Option(help="TorchScript feature network (Inception).")] = None,
    feature_input: Annotated[str, typer.Option(help="What it is fed: bytes or tf299.")] = "bytes",
    reference: Annotated[
        Path | None, typer.Option(help="Real images, their .npz statistics, or texts.")
    ] = None,
    prompts: Annotated[
        Path | None, typer.Option(help="Prompts to continue, one a line, or ids (.npy).")
    ] = None,
    samples: Annotated[Path | None, typer.Option(help="Measure samples from a file, not a model.")] = None,
    json: Annotated[bool, typer.Option("--json", help="The result as one JSON object on stdout.")] = False,
    out: Annotated[Path | None, typer.Option(help="Folder for results.json, the plot and the page.")] = None,
    device: Annotated[
        str | None, typer.Option(help="cpu, cuda or mps; default: cuda if there is one.")
    ] = None,
) -> None:
    """Measure quality against steps; writes a table, results.json, a plot and one HTML page."""

    def command() -> None:
        if protocol == "list":
            _list_protocols()
            return
        if protocol == "tiny-speedup":
            unused: dict[str, object] = {"--teacher": teacher, "--model": model, "--judge": judge}
            unused |= {"--temperatures": temperatures, "--features": features, "--reference": reference}
            _refuse(unused | {"--prompts": prompts, "--samples": samples})
            most = n if limit is None else min(n or limit, limit)
            _speedup(student, parse_steps(steps), most, seed, out, json, device)
            return
        from di4c_cli.evaluation.contest import parse_rows
        from di4c_cli.evaluation.instruments import Tools
        from di4c_cli.evaluation.order import Order
        from di4c_cli.generate.request import choose_device

        order = Order(
            student=student,
            teacher=teacher,
            others=parse_rows(model or []),
            protocol=protocol,
            steps=parse_steps(steps),
            temperatures=parse_numbers(temperatures, "--temperatures"),
            n=n,
            limit=limit,
            seed=seed,
            out=out,
            tools=Tools(judge, features, reference, choose_device(device), feature_input),
            prompts=prompts,
        )
        typed = typed_command(context)
        if samples is not None:
            _eval_file(samples, order, json, typed)
        else:
            _eval(order, json, typed)

    guarded(command)


def _eval(order: Order, json: bool, typed: str) -> None:
    from di4c_cli.evaluation.order import fulfil
    from di4c_cli.report.locate import run_of
    from di4c_cli.report.write import write_all

    prepared = fulfil(order, say)
    say(prepared.announcement())
    with progress("samples", prepared.total) as advance:
        results = prepared.run(advance).model_copy(update={"command": typed})
    written = write_all(results, prepared.out, prepared.main, run_of(prepared.out))
    if json:
        emit_json(results.model_dump(mode="json"))
    else:
        show(results, prepared.main, prepared.plan if order.protocol else None)
    for path in written:
        say(f"wrote {path}")


def _eval_file(path: Path, order: Order, json: bool, typed: str) -> None:
    from di4c_cli.evaluation.from_file import evaluate_file
    from di4c_cli.evaluation.order import check_out
    from di4c_cli.report.write import write_all

    out = order.out or Path("evaluations") / path.stem
    check_out(out)
    results, main = evaluate_file(path, order.tools, order.n or order.limit, out)
    results = results.model_copy(update={"command": typed})
    written = write_all(results, out, main)
    if json:
        emit_json(results.model_dump(mode="json"))
    else:
        show(results, main)
    for file in written:
        say(f"wrote {file}")


def _refuse(flags: dict[str, object]) -> None:
    """tiny-speedup has its own teachers and instruments; a flag it cannot follow is not passed over."""
    given = [flag for flag, value in flags.items() if value]
    if given:
        raise UserError(
            f"tiny-speedup does not take {', '.join(given)}.",
            "It compares embedded worlds; name only --student, or evaluate without this protocol.",
        )


def _speedup(
    student: str | None,
    counts: list[int] | None,
    n: int | None,
    seed: int,
    out: Path | None,
    json: bool,
    device: str | None,
) -> None:
    """Steps saved at equal quality on the embedded worlds, or on the world of one student."""
    from di4c_cli import files
    from di4c_cli.evaluation import speedup
    from di4c_cli.evaluation.order import check_out
    from di4c_cli.generate.request import choose_device
    from di4c_cli.report.speedup import COLUMNS, rows, speedup_png

    folder = out or Path("evaluations") / "tiny-speedup"
    check_out(folder)
    place = choose_device(device)
    students = speedup.default_students() if student is None else speedup.one_student(student)
    seeds, steps = range(seed, seed + speedup.REPEATS), counts or speedup.STUDENT_STEPS
    say(f"{', '.join(students)}: teacher and student at several step counts, {len(seeds)} times each.")
    with progress("samples", speedup.work(list(students), n, seeds, steps)) as advance:
        result = speedup.all_speedups(students, n, seeds, steps, advance, place)
    files.write_text(folder / "speedup.json", result.model_dump_json(indent=1) + "\n")
    files.write_bytes(folder / "speedup.png", speedup_png(result))
    if json:
        emit_json(result.model_dump(mode="json"))
    else:
        show_table("Steps saved at equal quality", list(COLUMNS), rows(result))
    for name in ("speedup.json", "speedup.png"):
        say(f"wrote {folder / name}")


def _list_protocols() -> None:
    from di4c_cli.evaluation import speedup
    from di4c_cli.evaluation.protocols import PROTOCOLS

    rows = [[name, make().title, str(make().n), str(len(make().cells))] for name, make in PROTOCOLS.items()]
    sizes = speedup.SAMPLES.values()
    cells = speedup.work(list(speedup.SAMPLES), 1, [0], speedup.STUDENT_STEPS)
    rows.append(
        [
            "tiny-speedup",
            "steps saved at equal quality, every embedded world",
            f"{min(sizes)}-{max(sizes)}",
            f"{cells} x {speedup.REPEATS}",
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
        raise UserError(f"{flag} {text} holds a number that is not above 0.", f"Write e.g. {flag} 1,2,4.")
    return list(dict.fromkeys(numbers))


def parse_steps(text: str | None) -> list[int] | None:
    """`1,2,4` as whole numbers."""
    numbers = parse_numbers(text, "--steps")
    if numbers is not None and any(number != int(number) for number in numbers):
        raise UserError(f"--steps {text} are not whole numbers.", "Write e.g. --steps 1,2,4,8.")
    return None if numbers is None else [int(number) for number in numbers]


def show(results: Results, main: str, plan: Plan | None = None) -> None:
    """Tables on stdout, in the paper's shape for its protocols, and what they say in a line."""
    from di4c_cli.report.summary import sentences
    from di4c_cli.report.table import overview, plan_tables

    count, seed = results.cells[0].n, results.cells[0].seed
    title = f"{results.title}, n = {count}, seed {seed}"
    if plan is None or not results.metrics:
        header, rows = overview(results)
        show_table(title, header, rows)
    else:
        beside = "; the paper's figures in brackets" if any(cell.paper for cell in plan.cells) else ""
        for printed in plan_tables(results, plan):
            named = f"{printed.title}: " if printed.title else ""
            show_table(f"{named}{title}{beside}", printed.header, printed.rows)
    for cell in results.cells if not results.metrics else []:
        for text in cell.samples:
            print(f"{cell.row}, {cell.column}: {text}")
    for line in sentences(results, main):
        print(line)
    for note in results.notes:
        print(f"Note: {note}")
