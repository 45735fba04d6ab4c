"""How long a batch of samples takes: teacher against student, and against what is possible.

The sides take turns, one batch each, in an order that is reversed every time, so that a slow moment of the
machine hits all of them. Warm-up batches are thrown away, the device is synchronised before and after every
batch. The overhead is the paired ratio student / teacher: the Hodges–Lehmann estimate of the log-ratios with
the interval of the signed-rank test, which a few disturbed batches cannot pull away. Peak memory comes from
one more, untimed batch.
"""

from __future__ import annotations

import math
import os
import platform
import statistics
import time
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import Any

from di4c_cli.bench.contenders import Contest, Run, runners
from di4c_cli.memory import peak_memory, reset_peak_memory

FEWEST = 10
"""Timed batches: below ten no interval deserves the name."""
Z = 1.959964


def synchronise(device: str) -> None:
    """Wait until the device has done what it was told."""
    import torch

    if device.startswith("cuda"):
        torch.cuda.synchronize()
    elif device == "mps":
        torch.mps.synchronize()


def interleaved(
    sides: Mapping[str, Run],
    batches: int,
    warmup: int,
    device: str = "cpu",
    advance: Callable[[int], None] = lambda count: None,
) -> dict[str, list[float]]:
    """Seconds of each timed batch by side; batch i is the same samples on every side."""
    seconds: dict[str, list[float]] = {name: [] for name in sides}
    for i in range(warmup + batches):
        order = list(sides) if i % 2 == 0 else list(sides)[::-1]
        for name in order:
            synchronise(device)
            start = time.perf_counter()
            sides[name](i)
            synchronise(device)
            if i >= warmup:
                seconds[name].append(time.perf_counter() - start)
            advance(1)
    return seconds


def paired_ratio(over: Sequence[float], under: Sequence[float]) -> dict[str, float]:
    """over / under of paired times: estimate and ends of the 95 % interval (Hodges–Lehmann, signed ranks)."""
    logs = [math.log(a / b) for a, b in zip(over, under)]
    n = len(logs)
    walsh = sorted((logs[i] + logs[j]) / 2 for i in range(n) for j in range(i, n))
    spread = math.sqrt(n * (n + 1) * (2 * n + 1) / 24)
    cut = max(0, math.floor(n * (n + 1) / 4 - Z * spread))
    ends = (statistics.median(walsh), walsh[cut], walsh[-1 - cut])
    ratio, low, high = (math.exp(value) for value in ends)
    return {"ratio": ratio, "low": low, "high": high}


def quantile(values: Sequence[float], share: float) -> float:
    """Linear between order statistics."""
    ordered = sorted(values)
    place = share * (len(ordered) - 1)
    low = math.floor(place)
    high = min(low + 1, len(ordered) - 1)
    return ordered[low] + (place - low) * (ordered[high] - ordered[low])


def describe(seconds: Sequence[float], batch: int, length: int) -> dict[str, float]:
    """The figures of one side."""
    mean = statistics.fmean(seconds)
    return {
        "mean": mean,
        "std": statistics.stdev(seconds),
        "p50": statistics.median(seconds),
        "p95": quantile(seconds, 0.95),
        "samples_per_second": batch / mean,
        "tokens_per_second": batch * length / mean,
    }


def batch_peak(run: Run, device: str) -> float:
    """Megabytes at the highest point of one batch, weights included."""
    reset_peak_memory(device)
    run(0)
    return peak_memory(device) / 2**20


def measure(
    contest: Contest,
    batches: int = FEWEST,
    warmup: int = 2,
    compare: bool = False,
    device: str = "cpu",
    advance: Callable[[int], None] = lambda count: None,
) -> dict[str, Any]:
    """One contest as a result: every side's figures, the overhead, and with `compare` the two ratios."""
    sides = runners(contest, compare)
    seconds = interleaved(sides, batches, warmup, device, advance)
    figures: dict[str, Any] = {}
    for name, values in seconds.items():
        figures[name] = describe(values, contest.batch, contest.length)
        figures[name]["peak_mb"] = batch_peak(sides[name], device)
        figures[name]["seconds"] = [round(value, 6) for value in values]
    result: dict[str, Any] = {
        "experiment": contest.title,
        "note": contest.note,
        "batch": contest.batch,
        "length": contest.length,
        "batches": batches,
        "warmup": warmup,
        "settings": contest.settings.settings(),
        "sides": figures,
        "overhead": paired_ratio(seconds["student"], seconds["teacher"]),
    }
    if compare:
        result["over_body"] = paired_ratio(seconds["teacher"], seconds["body only"])
        result["textbook_over_ours"] = paired_ratio(seconds["textbook"], seconds["teacher"])
    return result


def machine(device: str) -> dict[str, Any]:
    """What it was measured on."""
    import torch

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
    """The processor as the system calls it."""
    try:
        for line in Path("/proc/cpuinfo").read_text().splitlines():
            if line.startswith("model name"):
                return line.partition(":")[2].strip()
    except OSError:
        pass
    return platform.processor() or platform.machine()
