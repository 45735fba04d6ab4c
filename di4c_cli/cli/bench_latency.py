"""`di4c bench-latency`: what the mixture costs; teacher and student timed in turn, in the paper's table."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

from di4c_cli.cli.console import emit_json, guarded, progress, say, show_table
from di4c_cli.errors import UserError

if TYPE_CHECKING:
    from di4c_cli.bench.contenders import Contest


def bench_latency(
    student: Annotated[str | None, typer.Option(help="Student or run folder, Hub id or name.")] = None,
    teacher: Annotated[
        str | None, typer.Option(help="Teacher; alone it meets a student of its size with random λ weights.")
    ] = None,
    shape: Annotated[
        list[str] | None,
        typer.Option(
            help="cifar10, imagenet, openwebtext, text-256 with random weights, or `paper` for the first three."
        ),
    ] = None,
    steps: Annotated[
        int | None, typer.Option(help="Sampling steps; default: the shape's or model's.")
    ] = None,
    batch_size: Annotated[
        int | None, typer.Option(min=1, help="Samples a batch; default: the paper's, 1 for shapes on a CPU.")
    ] = None,
    batches: Annotated[int, typer.Option(min=10, help="Timed batches of each side.")] = 10,
    warmup: Annotated[int, typer.Option(min=1, help="Batches thrown away first.")] = 2,
    compare: Annotated[
        bool, typer.Option("--compare", help="Also time the body alone and a textbook 32-bit sampler.")
    ] = False,
    tile: Annotated[
        int | None,
        typer.Option(min=0, help="Samples per network call; 0: the batch, the default for shapes."),
    ] = None,
    threads: Annotated[int | None, typer.Option(min=1, help="CPU threads; default: torch's choice.")] = None,
    device: Annotated[
        str | None, typer.Option(help="cpu, cuda or mps; default: cuda if there is one.")
    ] = None,
    out: Annotated[Path, typer.Option(help="The plot.")] = Path("latency.png"),
) -> None:
    """Time teacher and student in turn. The last line of the output is one JSON object."""

    def command() -> None:
        import torch

        from di4c_cli.bench.latency import machine, measure
        from di4c_cli.bench.latency_plot import save_plot
        from di4c_cli.generate.request import choose_device

        if steps is not None and steps < 1:
            raise UserError(f"{steps} sampling steps are too few.", "Use --steps 1 or more.")
        if out.suffix != ".png":
            raise UserError(f"{out} is not a .png file.", "Choose another --out.")
        if threads is not None:
            torch.set_num_threads(threads)
        place = choose_device(device)
        results = []
        for build in _contests(student, teacher, shape or [], place, steps, batch_size, tile):
            contest = build()
            say(f"{contest.title}: {contest.settings.steps} steps, batch {contest.batch}. {contest.note}")
            with progress("batches", (batches + warmup) * (4 if compare else 2)) as advance:
                results.append(measure(contest, batches, warmup, compare, place, advance))
        _show(results)
        save_plot(results, out)
        say(f"wrote {out}")
        emit_json({"bench": "latency", **machine(place), "results": results})

    guarded(command)


def _contests(
    student: str | None,
    teacher: str | None,
    shapes: list[str],
    device: str,
    steps: int | None,
    batch: int | None,
    tile: int | None,
) -> list[Any]:
    """What is to be timed, each built only when its turn comes: two large pairs need not fit side by side."""
    from dataclasses import replace

    from di4c_cli.bench import contenders

    names = [name for word in shapes for name in word.split(",")]
    if "paper" in names:
        names = ["cifar10", "imagenet", "openwebtext"]
    if names and (student or teacher):
        raise UserError(
            "A shape and a model exclude each other.", "Name --shape, or --student and --teacher."
        )
    for name in names:
        if name not in contenders.SHAPES:
            raise UserError(f"Shape '{name}' is unknown.", f"Choose one of: {', '.join(contenders.SHAPES)}.")

    def tiled(contest: Contest) -> Contest:
        if tile is None:
            return contest
        return replace(contest, settings=replace(contest.settings, tile=tile))

    if names:
        return [lambda name=name: tiled(contenders.from_shape(name, device, steps, batch)) for name in names]
    return [lambda: tiled(contenders.from_models(*_pair(student, teacher, device), steps, batch))]


def _pair(student: str | None, teacher: str | None, device: str) -> tuple[Any, Any]:
    """Teacher and student; a student brings its teacher along, nobody named is the embedded pair."""
    from di4c_cli.generate.request import default_model
    from di4c_cli.model import load

    if student is None and teacher is not None:
        return load(teacher, device=device), None
    pupil = load(student or default_model(say), device=device)
    return load(teacher, device=device) if teacher is not None else pupil.teacher, pupil


def _show(results: list[dict[str, Any]]) -> None:
    """The paper's table, then everything else."""
    from di4c_cli.report.latency import LATENCY_RATIOS

    def seconds(side: dict[str, float]) -> str:
        return f"{side['mean']:.4f} ± {side['std']:.4f}"

    rows = [
        [
            r["experiment"],
            str(r["settings"]["steps"]),
            *(seconds(r["sides"][k]) for k in ("teacher", "student")),
        ]
        for r in results
    ]
    show_table("Latency (tab. latency)", ["Experiment", "# steps", "teacher (sec.)", "student (sec.)"], rows)
    rows = []
    for r in results:
        for name, side in r["sides"].items():
            memory = "" if side["peak_mb"] is None else f"{side['peak_mb']:.0f}"
            figures = [f"{side[key]:.4f}" for key in ("p50", "p95")]
            speed = [f"{side[key]:.4g}" for key in ("samples_per_second", "tokens_per_second")]
            rows.append([r["experiment"], name, str(r["batch"]), *figures, *speed, memory])
    header = ["Experiment", "side", "batch", "p50 (s)", "p95 (s)", "samples/s", "tokens/s", "peak MB"]
    show_table("Every side", header, rows)
    for r in results:
        for key, words in LATENCY_RATIOS.items():
            if key in r:
                interval = f"[{r[key]['low']:.3f}, {r[key]['high']:.3f}]"
                print(f"{r['experiment']}: {words} {r[key]['ratio']:.3f} {interval}")
