"""`di4c bench-latency`: time teacher and student in turn and print the paper's latency table."""

from __future__ import annotations

from collections.abc import Callable
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
    student: Annotated[str | None, typer.Option(help="Student or run folder, Hub id or name.")] = None,
    teacher: Annotated[
        str | None, typer.Option(help="Teacher; without --student it is compared with itself plus random λ weights.")
    ] = None,
    shape: Annotated[
        list[str] | None,
        typer.Option(
            help="Random weights of a published size: cifar10, imagenet, openwebtext, text-256; "
            "`paper` means the first three."
        ),
    ] = None,
    steps: Annotated[int | None, typer.Option(help="Sampling steps; default: those of the shape or model.")] = None,
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
    """Time sampling with teacher and student in turn. The last line of the output is one JSON object."""
    import torch

    from di4c_cli.bench.latency import machine, measure, save_plot
    from di4c_cli.generate.request import choose_device
    from di4c_cli.sampler.plan import check_ranges

    check_ranges({"steps": steps})
    out = output_file(out, ".png")
    if threads is not None:
        torch.set_num_threads(threads)
    place = choose_device(device)
    results = []
    for make_pair in _pairs(student, teacher, shape or [], place, steps, batch_size):
        pair = make_pair()
        say(f"{pair.title}: {pair.settings.steps} steps, batch {pair.batch}. {pair.note}")
        with progress("batches", (batches + warmup) * 2) as advance:
            results.append(measure(pair, batches, warmup, place, advance))
    show(results)
    save_plot(results, out)
    say(f"wrote {out}")
    emit_json({"bench": "latency", **machine(place), "results": results})


def _pairs(
    student: str | None, teacher: str | None, shapes: list[str], device: str, steps: int | None, batch: int | None
) -> list[Callable[[], ModelPair]]:
    """One function per pair, called when its turn comes: two large pairs need not fit into memory together."""
    from di4c_cli.bench.pairs import PAPER_SHAPES, published_shape, random_pair, real_pair

    names = [name for word in shapes for name in word.split(",")]
    if names and (student or teacher):
        raise UserError("A shape and a model exclude each other.", "Use either --shape, or --student and --teacher.")
    if names:
        chosen = [published_shape(name) for name in (PAPER_SHAPES if "paper" in names else names)]
        return [partial(random_pair, shape, device, steps, batch) for shape in chosen]
    return [lambda: real_pair(*_models(student, teacher, device), steps, batch)]


def _models(student: str | None, teacher: str | None, device: str) -> tuple[Any, Any]:
    """Teacher and student: a student alone uses its own teacher; the default is the newest run or the embedded pair."""
    from di4c_cli.generate.request import default_model
    from di4c_cli.model import load

    if student is None and teacher is not None:
        return load(teacher, device=device), None
    model = load(student or default_model(say), device=device)
    return load(teacher, device=device) if teacher is not None else model.teacher, model


def show(results: list[dict[str, Any]]) -> None:
    """The paper's table, then everything else."""
    from di4c_cli.report.latency import LATENCY_RATIOS

    paper, figures = [], []
    for r in results:
        seconds = [f"{r['sides'][k]['mean']:.4f} ± {r['sides'][k]['std']:.4f}" for k in ("teacher", "student")]
        paper.append([r["experiment"], str(r["settings"]["steps"]), *seconds])
        for name, side in r["sides"].items():
            times = [f"{side[key]:.4f}" for key in ("p50", "p95")]
            speed = [f"{side[key]:.4g}" for key in ("samples_per_second", "tokens_per_second")]
            memory = "" if side["peak_mb"] is None else f"{side['peak_mb']:.0f}"
            figures.append([r["experiment"], name, str(r["batch"]), *times, *speed, memory])
    show_table("Latency", ["Experiment", "# steps", "teacher (sec.)", "student (sec.)"], paper)
    header = ["Experiment", "side", "batch", "p50 (s)", "p95 (s)", "samples/s", "tokens/s", "peak MB"]
    show_table("All sides", header, figures)
    for r in results:
        for key, words in LATENCY_RATIOS.items():
            if key in r:
                interval = f"[{r[key]['low']:.3f}, {r[key]['high']:.3f}]"
                emit(f"{r['experiment']}: {words} {r[key]['ratio']:.3f} {interval}")
