"""`di4c bench-latency`: time teacher and student in turn and print the paper's latency table."""

from __future__ import annotations

from collections.abc import Callable, Collection
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

from di4c_cli.cli.console import emit, emit_json, output_file, progress, say, show_table
from di4c_cli.errors import UserError
from di4c_cli.schema import MAX_BATCH, MAX_SAMPLES, MAX_THREADS

if TYPE_CHECKING:
    from di4c_cli.bench.pairs import ModelPair


def bench_latency(
    student: Annotated[
        list[str] | None,
        typer.Option(
            help="Student or run folder, Hub id or name; `cifar10=REF` makes it that row of the paper's table."
        ),
    ] = None,
    teacher: Annotated[
        list[str] | None,
        typer.Option(
            help="Teacher, or `cifar10=REF`; without a student it is compared with itself plus random λ weights."
        ),
    ] = None,
    shape: Annotated[
        list[str] | None,
        typer.Option(
            help="Rows of published size: cifar10, imagenet, openwebtext, text-256; `paper` means the first three. "
            "A row without --student or --teacher has random weights."
        ),
    ] = None,
    steps: Annotated[int | None, typer.Option(help="Sampling steps; default: those of the shape or model.")] = None,
    block: Annotated[
        int | None, typer.Option(help="Fill blocks of N positions from left to right; they divide the steps equally.")
    ] = None,
    batch_size: Annotated[
        int | None,
        typer.Option(min=1, max=MAX_BATCH, help="Samples per batch; default: the paper's, 1 for a shape on a CPU."),
    ] = None,
    batches: Annotated[int, typer.Option(min=10, max=MAX_SAMPLES, help="Timed batches of each side.")] = 10,
    warmup: Annotated[int, typer.Option(min=1, max=MAX_SAMPLES, help="Untimed batches of each side before them.")] = 2,
    threads: Annotated[
        int | None, typer.Option(min=1, max=MAX_THREADS, help="CPU threads; default: torch's choice.")
    ] = None,
    device: Annotated[str | None, typer.Option(help="cpu, cuda or mps; default: cuda if there is one.")] = None,
    out: Annotated[Path, typer.Option(help="Where to write the plot, a .png file.")] = Path("latency.png"),
) -> None:
    """Time sampling and decoding with teacher and student in turn. The last line of the output is one JSON object."""
    import torch

    from di4c_cli.bench.latency import machine, measure, save_plot
    from di4c_cli.generate.request import choose_device
    from di4c_cli.limits import check_threads
    from di4c_cli.sampler.plan import check_ranges

    check_ranges({"steps": steps, "block": block})
    out = output_file(out, ".png")
    if threads is not None:
        check_threads(threads)
        torch.set_num_threads(threads)
    place = choose_device(device)
    results = []
    for make_pair in _pairs(student or [], teacher or [], shape or [], place, steps, batch_size, block):
        pair = make_pair()
        announce(pair)
        with progress("batches", (batches + warmup) * 2) as advance:
            results.append(measure(pair, batches, warmup, place, advance))
    show(results)
    save_plot(results, out)
    say(f"wrote {out}")
    emit_json({"bench": "latency", **machine(place), "results": results})


def announce(pair: ModelPair) -> None:
    """Say what is timed next, and with which weights."""
    weights = ", ".join(f"{side}: {name}" for side, name in pair.weights.items())
    if set(pair.weights.values()) == {"random"}:
        weights = "random weights"
    note = f" ({pair.note})" if pair.note else ""
    say(f"{pair.title}: {pair.settings.steps} steps, batch {pair.batch}; {weights}{note}.")


def _pairs(
    students: list[str],
    teachers: list[str],
    shapes: list[str],
    device: str,
    steps: int | None,
    batch: int | None,
    block: int | None,
) -> list[Callable[[], ModelPair]]:
    """One function per pair, called when its turn comes: two large pairs need not fit into memory together."""
    from di4c_cli.bench.pairs import PAPER_SHAPES, SHAPES, published_shape, random_pair, real_pair

    student_of, teacher_of = _by_row(students, "--student", SHAPES), _by_row(teachers, "--teacher", SHAPES)
    given = dict.fromkeys([*student_of, *teacher_of])
    asked = [name for word in shapes for name in (PAPER_SHAPES if word == "paper" else word.split(","))]
    if asked and "" in given:
        raise UserError(
            "A shape and a model without a row exclude each other.",
            f"Use either --shape, or --student and --teacher, or name the model's row: --student {asked[0]}=REF.",
        )

    def make(name: str) -> ModelPair:
        if name in asked and name not in given:
            return random_pair(published_shape(name), device, steps, batch, block)
        models = _models(student_of.get(name), teacher_of.get(name), device)
        return real_pair(*models, steps, batch, SHAPES.get(name), block)

    rows = dict.fromkeys([*asked, *given]) or [""]
    for name in asked:
        published_shape(name)
    return [partial(make, name) for name in rows]


def _by_row(refs: list[str], flag: str, rows: Collection[str]) -> dict[str, str]:
    """`cifar10=REF` by its row; a reference without a row has the row ''."""
    found: dict[str, str] = {}
    for ref in refs:
        name, _, rest = ref.partition("=")
        name, ref = (name, rest) if name in rows else ("", ref)
        if name in found:
            raise UserError(f"{flag} names two models for one row.", f"Name a row for each: {flag} cifar10=REF.")
        found[name] = ref
    return found


def _models(student: str | None, teacher: str | None, device: str) -> tuple[Any, Any]:
    """Teacher and student: a student alone uses its own teacher; the default is the newest run or the embedded pair."""
    from di4c_cli.generate.request import default_model
    from di4c_cli.model import load

    if student is None and teacher is not None:
        return load(teacher, device=device), None
    model = load(student or default_model(say), device=device)
    return load(teacher, device=device) if teacher is not None else model.teacher, model


def show(results: list[dict[str, Any]]) -> None:
    """The paper's table with the paper's seconds in brackets, then everything else."""
    from di4c_cli.report.latency import LATENCY_RATIOS, ratio_text

    rows, figures = [], []
    for r in results:
        rows.append(_paper_row(r))
        for name, side in r["sides"].items():
            times = [f"{side[key]:.4f}" for key in ("p50", "p95")]
            speed = [f"{side[key]:.4g}" for key in ("samples_per_second", "tokens_per_second")]
            speed.append(f"{side['tokens_per_pass']:.4g}" if "tokens_per_pass" in side else "")
            memory = "" if side["peak_mb"] is None else f"{side['peak_mb']:.0f}"
            weights = r["weights"].get(name, r["weights"]["teacher"])
            figures.append([r["experiment"], name, weights, *times, f"{side['decoding']:.1%}", *speed, memory])
    header = ["Experiment", "# steps", "batch", "teacher (sec.)", "student (sec.)", "decoding"]
    show_table("Latency", header, rows)
    if any("paper" in r for r in results):
        emit("Mean ± standard deviation of the seconds per batch. In brackets: tab:latency of the paper, 10 batches.")
    header = ["Experiment", "side", "weights", "p50 (s)", "p95 (s)", "decoding", "samples/s", "tokens/s", "tokens/pass"]
    header.append("peak MB")
    show_table("All sides", header, figures)
    for r in results:
        for key in LATENCY_RATIOS:
            if key in r:
                emit(ratio_text(r, key))


def _paper_row(result: dict[str, Any]) -> list[str]:
    """A row of tab:latency; `decoding` is the share of teacher and student."""
    paper, sides = result.get("paper", {}), [result["sides"][name] for name in ("teacher", "student")]
    seconds = [f"{side['mean']:.4f}±{side['std']:.4f}" for side in sides]
    if paper:
        seconds = [
            "{} [{:.4f}±{:.4f}]".format(ours, *paper[name]) for ours, name in zip(seconds, ("teacher", "student"))
        ]
    batch = f"{result['batch']} [{paper['batch']}]" if paper else str(result["batch"])
    decoding = " / ".join(f"{side['decoding']:.1%}" for side in sides)
    return [result["experiment"], str(result["settings"]["steps"]), batch, *seconds, decoding]
