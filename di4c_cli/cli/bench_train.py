"""`di4c bench-train`: time and memory of a training step, split into networks and loss."""

from __future__ import annotations

from typing import Annotated, Any

import typer

from di4c_cli.cli.console import emit_json, guarded, show_table


def bench_train(
    shape: Annotated[str, typer.Option(help="Published network: sdtt, maskgit or tauldr.")] = "sdtt",
    length: Annotated[int | None, typer.Option(min=1, help="Positions D (sdtt, maskgit).")] = None,
    latents: Annotated[int | None, typer.Option(min=1, help="λ draws per sample, L.")] = None,
    batch: Annotated[int | None, typer.Option(min=1, help="Samples B.")] = None,
    depth: Annotated[int | None, typer.Option(min=1, help="Blocks of the network (sdtt, maskgit).")] = None,
    width: Annotated[int | None, typer.Option(min=2, help="Hidden width (sdtt, maskgit).")] = None,
    heads: Annotated[int | None, typer.Option(min=1, help="Attention heads (sdtt, maskgit).")] = None,
    channels: Annotated[int | None, typer.Option(min=32, help="Channels of the U-Net (tauldr).")] = None,
    symbols: Annotated[int | None, typer.Option(min=2, help="Vocabulary S without the mask.")] = None,
    masked: Annotated[float | None, typer.Option(min=0, max=1, help="Share of masked positions.")] = None,
    runs: Annotated[int, typer.Option(min=1, help="Timed steps of each side; they take turns.")] = 5,
    warmup: Annotated[int, typer.Option(min=0, help="Untimed steps of each side before.")] = 1,
    sides: Annotated[str, typer.Option(help="Of body, dense, ours, step; step is a whole update.")] = (
        "body,dense,ours"
    ),
    chunk_mb: Annotated[float | None, typer.Option(min=0.01, help="Memory of a chunk of logits.")] = None,
    cache_mb: Annotated[float | None, typer.Option(min=0, help="Memory kept for the gradient.")] = None,
    threads: Annotated[int | None, typer.Option(min=1, help="CPU threads; default: all.")] = None,
    seed: Annotated[int, typer.Option(min=0, help="Seed of weights and data.")] = 0,
) -> None:
    """Measure what the loss costs: networks alone, a dense textbook loss, and ours, on the same step.

    Every side runs in a process of its own. The table is followed by one JSON line, the last of the output.
    """
    network = {"length": length, "depth": depth, "width": width, "heads": heads, "channels": channels}
    values = {"latents": latents, "batch": batch, "masked": masked, "threads": threads, "seed": seed}
    values |= {"chunk_mb": chunk_mb, "cache_mb": cache_mb}
    guarded(lambda: _run(shape, {**network, "symbols": symbols}, values, sides, runs, warmup))


def _run(
    name: str, network: dict[str, Any], values: dict[str, Any], sides: str, runs: int, warmup: int
) -> None:
    from di4c_cli.bench.train import SIDES, measure, resized
    from di4c_cli.errors import UserError

    wanted = [side.strip() for side in sides.split(",") if side.strip()]
    if not wanted or set(wanted) - set(SIDES) or len(set(wanted)) < len(wanted):
        raise UserError(f"Sides '{sides}' are not possible.", f"Choose from: {', '.join(SIDES)}.")
    result = measure(resized(name, network, **values), wanted, runs, warmup)
    _table(name, result)
    emit_json({"command": "bench-train", "name": name, **result})


def _table(name: str, result: dict[str, Any]) -> None:
    """One line a side: medians, and both against the networks alone."""
    body = result["sides"].get("body")
    rows = []
    for side, figures in result["sides"].items():
        row = [side, f"{figures['seconds']:.2f}", f"{figures['fastest']:.2f}–{figures['slowest']:.2f}"]
        row += [f"{figures['cpu_seconds']:.2f}", f"{figures['peak_bytes'] / 1e9:.2f}"]
        if body is None:
            row += ["", ""]
        else:
            row.append(f"{figures['seconds'] / body['seconds']:.2f}")
            row.append(f"{(figures['peak_bytes'] - body['peak_bytes']) / 1e9:+.2f}")
        rows.append([*row, "" if side == "body" else f"{figures['loss']:.4f}"])
    shape, machine = result["shape"], result["machine"]
    title = (
        f"One training step, {name}: B={shape['batch']}, L={shape['latents']}, "
        f"D={shape['network'].get('length', '')} S={shape['process']['symbols']}, "
        f"{machine['threads']} threads, medians of {result['runs']}"
    )
    columns = ["side", "seconds", "range", "cpu seconds", "peak GB", "× body", "GB above body", "loss"]
    show_table(title, columns, rows)
