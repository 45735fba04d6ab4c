"""Our sampler against two yardsticks: the network's body alone, and a textbook sampler with 32-bit draws.

    python -m benchmarks.latency --shape text-256
    python -m benchmarks.latency --student digits-student --steps 4 --batch-size 64

`di4c bench-latency` times teacher and student. This benchmark adds the yardsticks, both on the teacher, and lets all
four sides take turns. It prints a table, then one JSON object as the last line.
"""

from __future__ import annotations

from typing import Annotated, Any

import torch
import typer

from benchmarks import textbook
from di4c_cli.bench.latency import machine, measure, paired_ratio
from di4c_cli.bench.pairs import ModelPair, Side, published_shape, random_pair, real_pair
from di4c_cli.cli.bench_latency import announce, show
from di4c_cli.cli.console import emit_json, progress
from di4c_cli.cli.guard import guarded
from di4c_cli.model import load


def yardsticks(pair: ModelPair) -> dict[str, Side]:
    """The body alone and the textbook sampler, on the teacher of a pair."""
    model, settings, batch = pair.teacher, pair.settings, pair.batch
    return {
        "body only": Side(lambda i: textbook.body_only(model, settings, batch)),
        "textbook": Side(lambda i: textbook.sample(model, settings, batch, seed=i)),
    }


def compare(pair: ModelPair, batches: int, warmup: int) -> dict[str, Any]:
    """Time the four sides; `measure`'s result and the ratios of our sampler, without decoding, to the yardsticks."""
    with progress("batches", (batches + warmup) * 4) as advance:
        result = measure(pair, batches, warmup, advance=advance, further=yardsticks(pair))
    seconds = {name: side["sampling_seconds"] for name, side in result["sides"].items()}
    result["over_body"] = paired_ratio(seconds["teacher"], seconds["body only"])
    result["textbook_over_ours"] = paired_ratio(seconds["textbook"], seconds["teacher"])
    return result


@guarded
def main(
    shape: Annotated[str, typer.Option(help="Random weights of a published size; see `di4c bench-latency`.")] = (
        "text-256"
    ),
    student: Annotated[str | None, typer.Option(help="A student with a known teacher, instead of a shape.")] = None,
    steps: Annotated[int | None, typer.Option(min=1, help="Sampling steps; default: those of the model.")] = None,
    batch_size: Annotated[int | None, typer.Option(min=1, help="Samples per batch.")] = None,
    batches: Annotated[int, typer.Option(min=10, help="Timed batches of each side.")] = 10,
    warmup: Annotated[int, typer.Option(min=1, help="Untimed batches of each side before them.")] = 2,
    threads: Annotated[int | None, typer.Option(min=1, help="CPU threads; default: torch's choice.")] = None,
) -> None:
    """Time our sampler beside the network's body alone and a textbook 32-bit sampler, on the CPU."""
    if threads is not None:
        torch.set_num_threads(threads)
    if student is None:
        pair = random_pair(published_shape(shape), "cpu", steps, batch_size)
    else:
        model = load(student)
        pair = real_pair(model.teacher, model, steps, batch_size)
    announce(pair)
    result = compare(pair, batches, warmup)
    show([result])
    emit_json({"bench": "latency", **machine("cpu"), "results": [result]})


if __name__ == "__main__":
    typer.run(main)
