"""Sampling latency: seconds per batch of teacher and student, decoding included, their ratio, and a plot.

The sides take turns, one batch each, in an order that is reversed every time, so that a slow moment of the machine
affects all of them. Warm-up batches are discarded; the device is synchronised before and after every batch. The
overhead is the paired ratio student / teacher: the Hodges–Lehmann estimate of the log-ratios with the interval of
the signed-rank test, which is robust to a few disturbed batches. Peak memory is that of one more, untimed batch.
"""

from __future__ import annotations

import math
import os
import platform
import statistics
import time
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import Any, NamedTuple

import torch
from matplotlib.figure import Figure

from di4c_cli import files
from di4c_cli.bench.pairs import ModelPair, Side, sampling_side
from di4c_cli.memory import peak_memory, reset_peak_memory
from di4c_cli.printable import printable

MIN_BATCHES = 10
"""Timed batches; fewer give no useful interval."""
NORMAL_QUANTILE = statistics.NormalDist().inv_cdf(0.975)
SIDE_COLOURS = {"teacher": "#4477aa", "student": "#ee6677"}


class BatchSeconds(NamedTuple):
    """Seconds of one batch: until the ids are drawn, and from the ids to text or images."""

    sampling: float
    decoding: float


def synchronise(device: str) -> None:
    """Wait until the device has finished its queue."""
    if device.startswith("cuda"):
        torch.cuda.synchronize()
    elif device == "mps":
        torch.mps.synchronize()


def interleaved(
    sides: Mapping[str, Side],
    batches: int,
    warmup: int,
    device: str = "cpu",
    advance: Callable[[int], None] = lambda count: None,
) -> dict[str, list[BatchSeconds]]:
    """Seconds of each timed batch by side; batch i holds the same samples on every side."""
    seconds: dict[str, list[BatchSeconds]] = {name: [] for name in sides}
    for i in range(warmup + batches):
        order = list(sides) if i % 2 == 0 else list(sides)[::-1]
        for name in order:
            spent = run_batch(sides[name], i, device)
            if i >= warmup:
                seconds[name].append(spent)
            advance(1)
    return seconds


def run_batch(side: Side, i: int, device: str) -> BatchSeconds:
    """Sample and decode batch number i."""
    synchronise(device)
    start = time.perf_counter()
    x = side.sample(i)
    synchronise(device)
    drawn = time.perf_counter()
    if side.decode is None:
        return BatchSeconds(drawn - start, 0.0)
    side.decode(x)
    synchronise(device)
    return BatchSeconds(drawn - start, time.perf_counter() - drawn)


def paired_ratio(over: Sequence[float], under: Sequence[float]) -> dict[str, float]:
    """over / under of paired times: estimate and ends of the 95 % interval (Hodges–Lehmann, signed ranks)."""
    logs = [math.log(a / b) for a, b in zip(over, under)]
    n = len(logs)
    walsh = sorted((logs[i] + logs[j]) / 2 for i in range(n) for j in range(i, n))
    spread = math.sqrt(n * (n + 1) * (2 * n + 1) / 24)
    cut = max(0, math.floor(n * (n + 1) / 4 - NORMAL_QUANTILE * spread))
    ends = (statistics.median(walsh), walsh[cut], walsh[-1 - cut])
    ratio, low, high = (math.exp(value) for value in ends)
    return {"ratio": ratio, "low": low, "high": high}


def describe(batches: Sequence[BatchSeconds], batch: int, length: int) -> dict[str, Any]:
    """Summary of the seconds of one side; `decoding` is the share of decoding in them."""
    seconds = [sum(spent) for spent in batches]
    mean = statistics.fmean(seconds)
    return {
        "mean": mean,
        "std": statistics.stdev(seconds),
        "p50": statistics.median(seconds),
        "p95": statistics.quantiles(seconds, n=20, method="inclusive")[-1],
        "samples_per_second": batch / mean,
        "tokens_per_second": batch * length / mean,
        "decoding": statistics.fmean(spent.decoding for spent in batches) / mean,
        "seconds": [round(value, 6) for value in seconds],
        "sampling_seconds": [round(spent.sampling, 6) for spent in batches],
    }


def measure(
    pair: ModelPair,
    batches: int = MIN_BATCHES,
    warmup: int = 2,
    device: str = "cpu",
    advance: Callable[[int], None] = lambda count: None,
    further: Mapping[str, Side] | None = None,
) -> dict[str, Any]:
    """Time one pair and the `further` sides: the figures of every side, and the overhead of the student."""
    sides = {"teacher": sampling_side(pair, pair.teacher), "student": sampling_side(pair, pair.student)}
    sides |= further or {}
    seconds = interleaved(sides, batches, warmup, device, advance)
    figures: dict[str, Any] = {}
    for name, values in seconds.items():
        figures[name] = describe(values, pair.batch, pair.length)
        before = pair.passes
        reset_peak_memory(device)
        run_batch(sides[name], 0, device)
        figures[name]["peak_mb"] = peak_memory(device) / 2**20  # weights included
        if passes := pair.passes - before:
            figures[name]["tokens_per_pass"] = pair.batch * pair.length / passes
    paper = {} if pair.paper is None else {"paper": pair.paper}
    return {
        "experiment": pair.title,
        "note": pair.note,
        "batch": pair.batch,
        "length": pair.length,
        "batches": batches,
        "warmup": warmup,
        "settings": pair.settings.settings(),
        "weights": pair.weights,
        "sides": figures,
        "overhead": paired_ratio(figures["student"]["seconds"], figures["teacher"]["seconds"]),
        **paper,
    }


def machine(device: str) -> dict[str, Any]:
    """The hardware and software of the measurement."""
    name = torch.cuda.get_device_name() if device.startswith("cuda") else cpu_name()
    return {
        "device": device,
        "processor": name,
        "cores": os.cpu_count(),
        "threads": torch.get_num_threads(),
        "torch": torch.__version__,
        "python": platform.python_version(),
    }


def cpu_name() -> str:
    """The name of the processor."""
    try:
        for line in Path("/proc/cpuinfo").read_text().splitlines():
            if line.startswith("model name"):
                return line.partition(":")[2].strip()
    except OSError:
        pass
    return platform.processor() or platform.machine()


def save_plot(results: list[dict[str, Any]], path: Path) -> None:
    """One panel per experiment: a bar for every side, a dot for every batch, the overhead in the title.

    The upper, hatched part of a bar is decoding.
    """
    figure = Figure(figsize=(1.5 + 3.2 * len(results), 3.4), layout="constrained")
    for number, result in enumerate(results):
        axes = figure.add_subplot(1, len(results), number + 1)
        for place, (name, side) in enumerate(result["sides"].items()):
            decoding = side["decoding"] * side["mean"]
            axes.bar(place, side["mean"] - decoding, 0.6, color=SIDE_COLOURS[name], alpha=0.6)
            axes.bar(place, decoding, 0.6, side["mean"] - decoding, color=SIDE_COLOURS[name], alpha=0.35, hatch="//")
            count = len(side["seconds"])
            spread = [place + 0.3 * (i / max(1, count - 1) - 0.5) for i in range(count)]
            axes.plot(spread, side["seconds"], ".", color="#333333", markersize=3)
        axes.set_xticks(range(len(result["sides"])), list(result["sides"]), fontsize=8)
        axes.set_ylim(bottom=0)
        axes.set_ylabel(f"seconds per batch of {result['batch']}, decoding hatched", fontsize=8)
        over = result["overhead"]
        title = f"{printable(result['experiment'], 50)}, {result['settings']['steps']} steps"
        interval = f"[{over['low']:.3f}, {over['high']:.3f}]"
        axes.set_title(f"{title}\nstudent / teacher {over['ratio']:.3f} {interval}", fontsize=8, parse_math=False)
    files.write_with(path, lambda file: figure.savefig(file, format="png", dpi=150))
