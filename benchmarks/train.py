"""Time and memory of one training step, split into networks and loss.

    python -m benchmarks.train --shape sdtt --length 128 --latents 8

Every side makes the same training step on the same weights and the same batch, in a process of its own:

- body: teacher at t and student at u without gradient, student at t forward and backward; no head, no loss.
- dense: body, the head at all positions, and the readable loss on `(B, L, D, S)` tensors.
- ours: body, and the loss as training calls it.
- step: ours with activation checkpointing, Adam and EMA; a whole training step.

The sides take turns, one step each, so that a slow moment of the machine affects all of them; medians are
compared. Peak memory is the high-water mark of the process from the first step on. Prints a table, then one JSON
object as the last line.
"""

from __future__ import annotations

import contextlib
import json
import statistics
import subprocess
import sys
from dataclasses import asdict, dataclass, replace
from pathlib import Path
from typing import Annotated, Any

import typer

from di4c_cli import signals
from di4c_cli.cli.console import emit_json, show_table
from di4c_cli.cli.guard import guarded
from di4c_cli.errors import Failure, UserError
from di4c_cli.schema import MAX_BATCH, MAX_LATENTS, MAX_SEED, MAX_THREADS, MAX_WIDTH
from di4c_cli.teacher.architectures import network_settings, process_settings

SIDES = ("body", "dense", "ours", "step")


@dataclass(frozen=True)
class TrainingShape:
    """Sizes of one training step; `masked` is the share of masked positions where the process has a mask."""

    network: dict[str, Any]
    process: dict[str, Any]
    inject: str
    batch: int = 1
    latents: int = 16
    masked: float = 0.5
    step: float = 0.05
    chunk_mb: float = 64.0
    cache_mb: float = 256.0
    seed: int = 0
    threads: int | None = None

    @property
    def labels(self) -> int | None:
        """Number of classes, if the network takes a label."""
        return self.network.get("labels")


def _published(architecture: str, inject: str, **values: Any) -> TrainingShape:
    return TrainingShape(network_settings(architecture), process_settings(architecture), inject, **values)


SHAPES = {
    "sdtt": _published("dit-small", "token", step=1 / 1024),
    "maskgit": _published("maskgit-256", "token", latents=32),
    "tauldr": _published("tauldr-unet", "film", step=0.003),
}
"""The published networks of the three domains, one sample a step."""


def resized(name: str, sizes: dict[str, Any], **changes: Any) -> TrainingShape:
    """A named shape with other network sizes and other values; None keeps the shape's own value."""
    if name not in SHAPES:
        raise UserError(f"Shape '{name}' is unknown.", f"Choose one of: {', '.join(SHAPES)}.")
    base = SHAPES[name]
    given = {key: value for key, value in sizes.items() if value is not None}
    if unknown := set(given) - set(base.network):
        options = ", ".join(f"--{key}" for key in sorted(unknown))
        raise UserError(f"The shape {name} has no {options}.", "Omit the option, or choose another shape.")
    symbols = {"symbols": given["symbols"]} if "symbols" in given else {}
    values = {key: value for key, value in changes.items() if value is not None}
    return replace(base, network={**base.network, **given}, process={**base.process, **symbols}, **values)


class Worker:
    """The parent's end of one side's process."""

    def __init__(self, name: str, shape: TrainingShape) -> None:
        self.name = name
        command = [sys.executable, "-m", "benchmarks.train_worker"]
        pipes = {"stdin": subprocess.PIPE, "stdout": subprocess.PIPE}
        self.child = subprocess.Popen(command, text=True, cwd=Path(__file__).parents[1], **pipes)
        self.results: list[dict[str, Any]] = []
        self.machine = self.ask(json.dumps({"side": name, "shape": asdict(shape)}))

    def ask(self, line: str) -> dict[str, Any]:
        """Send a line and wait for the answer."""
        assert self.child.stdin is not None and self.child.stdout is not None
        try:
            self.child.stdin.write(line + "\n")
            self.child.stdin.flush()
            answer = self.child.stdout.readline()
        except BrokenPipeError:
            answer = ""
        if not answer:
            hint = "Memory is the usual reason: choose smaller sizes, or omit that side with --sides."
            raise Failure(f"The side '{self.name}' stopped without an answer.", hint)
        said = dict(json.loads(answer))
        if "mistake" in said:
            raise UserError(said["mistake"], said["hint"])
        return said

    def step(self) -> None:
        """Let the process make one step and keep its figures."""
        self.results.append(self.ask("step"))

    def close(self) -> None:
        """End the process, also in the middle of a step."""
        assert self.child.stdin is not None
        with contextlib.suppress(BrokenPipeError):
            self.child.stdin.close()
        self.child.terminate()
        self.child.wait()

    def summary(self, warmup: int) -> dict[str, float]:
        """Medians over the steps after the first `warmup`."""
        steps = self.results[warmup:]
        seconds = sorted(step["seconds"] for step in steps)
        return {
            "seconds": statistics.median(seconds),
            "fastest": seconds[0],
            "slowest": seconds[-1],
            "cpu_seconds": statistics.median(step["cpu"] for step in steps),
            "loss": steps[-1]["loss"],
            "peak_bytes": self.results[-1]["peak"],
        }


def measure(shape: TrainingShape, sides: list[str], runs: int, warmup: int = 1) -> dict[str, Any]:
    """Figures of each side and their ratios; `runs` timed steps a side after `warmup` untimed ones."""
    workers: list[Worker] = []
    try:
        for name in sides:
            workers.append(Worker(name, shape))
        for _ in range(warmup + runs):
            for worker in workers:
                worker.step()
    finally:
        for worker in workers:
            worker.close()
    results = {worker.name: worker.summary(warmup) for worker in workers}
    return {
        "shape": asdict(shape),
        "machine": workers[0].machine,
        "runs": runs,
        "warmup": warmup,
        "sides": results,
        **ratios(results),
    }


def ratios(results: dict[str, dict[str, float]]) -> dict[str, float]:
    """ours/body, dense/body, dense/ours in wall time and CPU time, and memory above body in bytes."""
    out = {}
    for name, base in (("ours", "body"), ("dense", "body"), ("dense", "ours")):
        if name in results and base in results:
            for key, label in (("seconds", ""), ("cpu_seconds", "_cpu")):
                out[f"{name}_over_{base}{label}"] = results[name][key] / results[base][key]
    for name in ("ours", "dense"):
        if name in results and "body" in results:
            out[f"{name}_bytes_above_body"] = results[name]["peak_bytes"] - results["body"]["peak_bytes"]
    return out


def show(name: str, result: dict[str, Any]) -> None:
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


@guarded
@signals.stoppable
def main(
    shape: Annotated[str, typer.Option(help="Published network: sdtt, maskgit or tauldr.")] = "sdtt",
    length: Annotated[int | None, typer.Option(min=1, max=2**18, help="Positions D (sdtt, maskgit).")] = None,
    latents: Annotated[int | None, typer.Option(min=1, max=MAX_LATENTS, help="λ samples per data sample, L.")] = None,
    batch: Annotated[int | None, typer.Option(min=1, max=MAX_BATCH, help="Batch size B.")] = None,
    depth: Annotated[int | None, typer.Option(min=1, max=1024, help="Blocks of the network (sdtt, maskgit).")] = None,
    width: Annotated[int | None, typer.Option(min=2, max=MAX_WIDTH, help="Hidden width (sdtt, maskgit).")] = None,
    heads: Annotated[int | None, typer.Option(min=1, max=1024, help="Attention heads (sdtt, maskgit).")] = None,
    channels: Annotated[int | None, typer.Option(min=32, max=MAX_WIDTH, help="Channels of the U-Net (tauldr).")] = None,
    symbols: Annotated[int | None, typer.Option(min=2, max=2**20, help="Vocabulary size S without the mask.")] = None,
    masked: Annotated[float | None, typer.Option(min=0, max=1, help="Share of masked positions.")] = None,
    runs: Annotated[int, typer.Option(min=1, max=1000000, help="Timed steps of each side.")] = 5,
    warmup: Annotated[int, typer.Option(min=0, max=1000000, help="Untimed steps of each side before them.")] = 1,
    sides: Annotated[str, typer.Option(help="Any of body, dense, ours, step.")] = "body,dense,ours",
    chunk_mb: Annotated[float | None, typer.Option(min=0.01, max=1e6, help="Memory of a chunk of logits.")] = None,
    cache_mb: Annotated[float | None, typer.Option(min=0, max=1e6, help="Memory kept for the backward pass.")] = None,
    threads: Annotated[int | None, typer.Option(min=1, max=MAX_THREADS, help="CPU threads; default: all.")] = None,
    seed: Annotated[int, typer.Option(min=0, max=MAX_SEED, help="Seed of weights and data.")] = 0,
) -> None:
    """Measure what the loss costs beside the networks: networks alone, the readable dense loss, and ours."""
    network = {"length": length, "depth": depth, "width": width, "heads": heads, "channels": channels}
    values = {"latents": latents, "batch": batch, "masked": masked, "threads": threads, "seed": seed}
    values |= {"chunk_mb": chunk_mb, "cache_mb": cache_mb}
    names = [side.strip() for side in sides.split(",") if side.strip()]
    if not names or set(names) - set(SIDES) or len(set(names)) < len(names):
        raise UserError(f"Sides '{sides}' are not possible.", f"Choose from: {', '.join(SIDES)}.")
    result = measure(resized(shape, {**network, "symbols": symbols}, **values), names, runs, warmup)
    show(shape, result)
    emit_json({"bench": "train", "name": shape, **result})


if __name__ == "__main__":
    signals.install()
    typer.run(main)
