"""What the loss costs beside the networks it needs: time and memory of body, dense loss and ours.

The sides do the same training step on the same weights and batch, each in a process of its own:

- body: teacher at t and student at u without gradient, student at t forward and backward; no head, no loss.
- dense: body, all heads at all positions, and the textbook loss on `(B, L, D, S)` tensors (`methods.di4c`).
- ours: body, and the method as training calls it.
- step: ours with activation checkpoints, Adam and EMA; a whole training step.

They take turns, one step each, so that a slow moment of the machine hits all of them; medians are compared.
Peak memory is the process's own high-water mark from the first step on.
"""

from __future__ import annotations

import contextlib
import json
import statistics
import subprocess
import sys
from dataclasses import asdict, dataclass, replace
from typing import Any

from di4c_cli.errors import Failure, UserError

SIDES = ("body", "dense", "ours", "step")


@dataclass(frozen=True)
class Shape:
    """Sizes of one step; `masked` is the share of unknown positions where the process has a mask."""

    network: dict[str, Any]
    process: dict[str, Any]
    latent: dict[str, Any]
    batch: int = 1
    latents: int = 16
    masked: float = 0.5
    step: float = 0.05
    labels: int | None = None
    chunk_mb: float = 64.0
    cache_mb: float = 256.0
    seed: int = 0
    threads: int | None = None


SHAPES: dict[str, Shape] = {
    "sdtt": Shape(
        {"type": "dit", "symbols": 50257, "length": 1024, "width": 768, "depth": 12, "heads": 12}
        | {"cond_dim": 128},
        {"type": "masked", "symbols": 50257},
        {"inject": "token"},
        step=1 / 1024,
    ),
    "maskgit": Shape(
        {"type": "maskgit", "symbols": 1024, "length": 256, "width": 768, "depth": 24, "heads": 16}
        | {"mlp": 3072, "labels": 1000},
        {"type": "masked", "symbols": 1024, "schedule": "arccos"},
        {"inject": "token"},
        latents=32,
        labels=1000,
    ),
    "tauldr": Shape(
        {"type": "unet", "symbols": 256, "shape": [3, 32, 32], "channels": 128, "multipliers": [1, 2, 2, 2]}
        | {"blocks": 2, "attention": [1], "time_dim": 128},
        {"type": "gaussian", "symbols": 256},
        {"inject": "film"},
        step=0.003,
    ),
}
"""The published networks of the three worlds, one sample a step."""


def resized(name: str, sizes: dict[str, Any], **changes: Any) -> Shape:
    """A named shape with other network sizes and other values; None leaves one as it is."""
    if name not in SHAPES:
        raise UserError(f"Shape '{name}' is unknown.", f"Choose one of: {', '.join(SHAPES)}.")
    base = SHAPES[name]
    given = {key: value for key, value in sizes.items() if value is not None}
    if foreign := set(given) - set(base.network):
        options = ", ".join(f"--{key}" for key in sorted(foreign))
        raise UserError(f"The shape {name} has no {options}.", "Leave it out, or choose another shape.")
    symbols = {"symbols": given["symbols"]} if "symbols" in given else {}
    values = {key: value for key, value in changes.items() if value is not None}
    network, process = {**base.network, **given}, {**base.process, **symbols}
    return replace(base, network=network, process=process, **values)


class Side:
    """The parent's end of one child process."""

    def __init__(self, name: str, shape: Shape) -> None:
        self.name = name
        command = [sys.executable, "-m", "di4c_cli.bench.train_worker"]
        self.child = subprocess.Popen(command, stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True)
        self.results: list[dict[str, Any]] = []
        self.machine = self.ask(json.dumps({"side": name, "shape": asdict(shape)}))

    def ask(self, line: str) -> dict[str, Any]:
        """Send a line, wait for the answer."""
        assert self.child.stdin is not None and self.child.stdout is not None
        try:
            self.child.stdin.write(line + "\n")
            self.child.stdin.flush()
            answer = self.child.stdout.readline()
        except BrokenPipeError:
            answer = ""
        if not answer:
            hint = "Memory is the usual reason: choose smaller sizes, or leave that side out with --sides."
            raise Failure(f"The side '{self.name}' stopped without an answer.", hint)
        said = dict(json.loads(answer))
        if "mistake" in said:
            raise UserError(said["mistake"], said["hint"])
        return said

    def step(self) -> None:
        self.results.append(self.ask("step"))

    def close(self) -> None:
        """End the child by closing its input."""
        assert self.child.stdin is not None
        with contextlib.suppress(BrokenPipeError):
            self.child.stdin.close()
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


def measure(shape: Shape, sides: list[str], runs: int, warmup: int = 1) -> dict[str, Any]:
    """Figures of each side and their ratios; `runs` timed steps a side after `warmup` untimed ones."""
    workers: list[Side] = []
    try:
        for name in sides:
            workers.append(Side(name, shape))
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
    """ours/body, dense/body, dense/ours in wall and processor time, and memory above body in bytes."""
    out = {}
    for name, base in (("ours", "body"), ("dense", "body"), ("dense", "ours")):
        if name in results and base in results:
            for key, label in (("seconds", ""), ("cpu_seconds", "_cpu")):
                out[f"{name}_over_{base}{label}"] = results[name][key] / results[base][key]
    for name in ("ours", "dense"):
        if name in results and "body" in results:
            out[f"{name}_bytes_above_body"] = results[name]["peak_bytes"] - results["body"]["peak_bytes"]
    return out
