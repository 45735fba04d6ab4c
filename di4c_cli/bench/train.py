"""How much the loss costs beside the networks it needs: time and memory of body, dense loss and ours.

Three sides do the same training step on the same weights and batch, each in a process of its own:

- body: teacher at t, student at u (both without gradient), student at t forward and backward; no head, no
loss.
- dense: the same, plus the heads and the textbook loss on `(B, L, D, S)` tensors (`bench.dense`).
- ours: the same, plus the heads and the loss in chunks (`objective`).

The sides take turns, one step each, so that a slow moment of the machine hits all of them; medians are
compared. Peak memory is the process's own high-water mark from the first step on. A fourth side, `step`, is
a whole training step with Adam, EMA and activation checkpoints.
"""

from __future__ import annotations

import gc
import json
import resource
import statistics
import subprocess
import sys
import time
from dataclasses import asdict, dataclass, replace
from typing import Any

from di4c_cli.errors import Failure, UserError

SIDES = ("body", "dense", "ours", "step")


@dataclass(frozen=True)
class Shape:
    """Sizes of one step; `masked` is the share of unknown positions (masked processes)."""

    network: dict[str, Any]
    process: dict[str, Any]
    latent: dict[str, Any]
    batch: int = 1
    latents: int = 16
    masked: float = 0.5
    step: float = 0.05
    labels: int | None = None
    chunk_mb: float = 32.0
    cache_mb: float = 256.0
    seed: int = 0
    threads: int | None = None


SHAPES: dict[str, Shape] = {
    "sdtt": Shape(
        {
            "type": "dit",
            "symbols": 50257,
            "length": 1024,
            "width": 768,
            "depth": 12,
            "heads": 12,
            "cond_dim": 128,
        },
        {"type": "masked", "symbols": 50257},
        {"inject": "token"},
        step=1 / 1024,
    ),
    "maskgit": Shape(
        {
            "type": "maskgit",
            "symbols": 1024,
            "length": 256,
            "width": 768,
            "depth": 24,
            "heads": 16,
            "mlp": 3072,
            "labels": 1000,
        },
        {"type": "masked", "symbols": 1024, "schedule": "arccos"},
        {"inject": "token"},
        latents=32,
        labels=1000,
    ),
    "tauldr": Shape(
        {
            "type": "unet",
            "symbols": 256,
            "shape": [3, 32, 32],
            "channels": 128,
            "multipliers": [1, 2, 2, 2],
            "blocks": 2,
            "attention": [1],
            "time_dim": 128,
        },
        {"type": "gaussian", "symbols": 256},
        {"inject": "film"},
        step=0.003,
    ),
}


def resized(name: str, network: dict[str, Any], **changes: Any) -> Shape:
    """A named shape with other sizes; None leaves a value as it is."""
    if name not in SHAPES:
        raise UserError(f"Shape '{name}' is unknown.", f"Choose one of: {', '.join(SHAPES)}.")
    base = SHAPES[name]
    sizes = {key: value for key, value in network.items() if value is not None}
    if foreign := set(sizes) - set(base.network):
        raise UserError(f"The shape {name} has no {', '.join(sorted(foreign))}.")
    process = dict(base.process)
    if "symbols" in sizes:
        process["symbols"] = sizes["symbols"]
    values = {key: value for key, value in changes.items() if value is not None}
    return replace(base, network={**base.network, **sizes}, process=process, **values)


class Worker:
    """One side: builds the models, then makes one step whenever it is told to."""

    def __init__(self, side: str, shape: Shape) -> None:
        import torch

        from di4c_cli.denoiser import Denoiser, Latent
        from di4c_cli.network import build
        from di4c_cli.process import build as build_process

        if shape.threads:
            torch.set_num_threads(shape.threads)
        self.side, self.shape = side, shape
        torch.manual_seed(shape.seed)
        process = build_process(shape.process)
        self.teacher = Denoiser(build(shape.network), process, labels=shape.labels)
        self.student = Denoiser(
            build({**shape.network, "latent": shape.latent}), process, Latent(), shape.labels
        )
        self.teacher.requires_grad_(False)
        self.objective, self.case = self._case()
        if side == "step":
            self._prepare_training()

    def _case(self) -> Any:
        """x0 at random, a fixed share of positions unknown, t = 1/2."""
        import torch

        from di4c_cli.noise import Noise
        from di4c_cli.objective.loss import Case, Objective
        from di4c_cli.objective.settings import Settings, Span
        from di4c_cli.objective.times import Moments

        shape, process = self.shape, self.teacher.process
        settings = Settings(
            latents=shape.latents,
            step=Span(shape.step, shape.step),
            chunk_mb=shape.chunk_mb,
            cache_mb=shape.cache_mb,
        )
        noise = Noise(shape.seed, range(shape.batch), "bench")
        length = self.student.length
        x0 = (noise.uniform("x0", length) * process.symbols).long()
        t = torch.full((shape.batch,), 0.5, dtype=torch.float64)
        x_t = process.corrupt(x0, t, noise.uniform("corrupt", length))
        if process.mask is not None:
            order = noise.uniform("order", length).argsort(-1)
            x_t = torch.where(order < round(shape.masked * length), process.mask, x0)
        step = torch.full_like(t, shape.step)
        moments = Moments(t, t - step, step, torch.full_like(t, 0.02))
        label = (noise.uniform("label") * shape.labels).long() if shape.labels else None
        return Objective(settings), Case(self.student, self.teacher, label, noise, moments, x_t, x0)

    def _prepare_training(self) -> None:
        import torch

        self.student.network.checkpointing = True  # type: ignore[assignment]
        self.optimizer = torch.optim.Adam(self.student.parameters(), lr=3e-5)
        self.ema = [p.detach().clone() for p in self.student.parameters()]

    def run(self) -> dict[str, float]:
        """One step; its time and its loss."""
        self.student.zero_grad(set_to_none=True)
        started, busy = time.perf_counter(), time.process_time()
        loss = float(getattr(self, self.side)())
        return {"seconds": time.perf_counter() - started, "cpu": time.process_time() - busy, "loss": loss}

    def body(self) -> Any:
        import torch

        from di4c_cli.objective.steps import repeat, repeat_label, teacher_predictions

        case, count = self.case, self.shape.latents
        with torch.no_grad():
            teacher_predictions(case.teacher, case.x_t, case.moments.t, case.label, count, case.noise)
            lam = case.student.draw_latent(case.noise, "lam/u", count)
            assert lam is not None
            inputs = repeat(case.x_t, count), repeat(case.moments.u, count)
            case.student.predict(*inputs, repeat_label(case.label, count), lam.flatten(0, 1))
        hidden = self.objective.student_at_t(case).hidden
        hidden.backward(torch.full_like(hidden, 1e-6))
        return 0.0

    def dense(self) -> Any:
        import torch

        from di4c_cli.bench.dense import dense_loss

        with torch.no_grad():
            problem = self.objective.at_t(self.case)
        loss = dense_loss(problem, self.objective.student_at_t(self.case))
        loss.backward()
        return loss.detach()

    def ours(self) -> Any:
        loss = self.objective.loss(self.case).total
        loss.backward()
        return loss.detach()

    def step(self) -> Any:
        import torch

        loss = self.ours()
        self.optimizer.step()
        with torch.no_grad():
            for mean, p in zip(self.ema, self.student.parameters()):
                mean.lerp_(p, 1e-4)
        return loss


def peak_bytes() -> int:
    """High-water mark of this process's resident memory."""
    try:
        with open("/proc/self/status") as file:
            line = next(line for line in file if line.startswith("VmHWM"))
        return int(line.split()[1]) * 1024
    except (OSError, StopIteration):
        unit = 1 if sys.platform == "darwin" else 1024
        return resource.getrusage(resource.RUSAGE_SELF).ru_maxrss * unit


def forget_peak() -> None:
    """Start the high-water mark anew, where the system allows it: building the models must not count."""
    gc.collect()
    try:
        with open("/proc/self/clear_refs", "w") as file:
            file.write("5")
    except OSError:
        pass


def serve() -> None:
    """The child: a side and a shape on the first line, then one step per line until stdin closes."""
    first = json.loads(sys.stdin.readline())
    worker = Worker(first["side"], Shape(**first["shape"]))
    forget_peak()
    print(json.dumps({"ready": True}), flush=True)
    for _ in sys.stdin:
        print(json.dumps({**worker.run(), "peak": peak_bytes()}), flush=True)


class Side:
    """The parent's end of one child."""

    def __init__(self, name: str, shape: Shape) -> None:
        self.name = name
        self.child = subprocess.Popen(
            [sys.executable, "-m", "di4c_cli.bench.train"],
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            text=True,
        )
        self.results: list[dict[str, float]] = []
        self.ask(json.dumps({"side": name, "shape": asdict(shape)}))

    def ask(self, line: str) -> dict[str, float]:
        assert self.child.stdin is not None and self.child.stdout is not None
        try:
            self.child.stdin.write(line + "\n")
            self.child.stdin.flush()
            answer = self.child.stdout.readline()
        except BrokenPipeError:
            answer = ""
        if not answer:
            hint = "Probably memory: use a smaller shape, or leave the dense side out."
            raise Failure(f"The {self.name} side stopped without an answer.", hint)
        return dict(json.loads(answer))

    def step(self) -> None:
        self.results.append(self.ask("step"))

    def close(self) -> None:
        assert self.child.stdin is not None
        self.child.stdin.close()
        self.child.wait()


def measure(shape: Shape, sides: list[str], runs: int, warmup: int = 1) -> dict[str, dict[str, float]]:
    """Median seconds, loss and peak bytes of each side; the sides take turns after `warmup` steps each."""
    workers = []
    try:
        for name in sides:
            workers.append(Side(name, shape))
        for _ in range(warmup + runs):
            for worker in workers:
                worker.step()
    finally:
        for worker in workers:
            worker.close()
    out = {}
    for worker in workers:
        timed = worker.results[warmup:]
        seconds = sorted(result["seconds"] for result in timed)
        out[worker.name] = {
            "seconds": statistics.median(seconds),
            "fastest": seconds[0],
            "slowest": seconds[-1],
            "cpu_seconds": statistics.median(result["cpu"] for result in timed),
            "loss": timed[-1]["loss"],
            "peak_bytes": worker.results[-1]["peak"],
        }
    return out


if __name__ == "__main__":
    serve()
