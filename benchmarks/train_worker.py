"""One side of `benchmarks.train` in its own process: builds the models, then makes one step per line of stdin."""

from __future__ import annotations

import gc
import json
import resource
import sys
import time
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor

from benchmarks.train import TrainingShape
from di4c_cli.denoiser import Denoiser
from di4c_cli.errors import UserError
from di4c_cli.latent.prior import LatentPrior
from di4c_cli.memory import peak_memory, physical_memory, reset_peak_memory
from di4c_cli.methods.base import flat_latents, repeat, repeat_label
from di4c_cli.methods.di4c import Di4C, dense_loss
from di4c_cli.methods.di4c_config import Di4CConfig, StepConfig
from di4c_cli.methods.di4c_times import SampledTimes
from di4c_cli.methods.noised_batch import NoisedBatch
from di4c_cli.network import build as build_network
from di4c_cli.noise import Noise
from di4c_cli.process import build as build_process


@dataclass
class Setup:
    """What all sides share: the same weights and the same batch, from one seed."""

    method: Di4C
    batch: NoisedBatch

    @property
    def student(self) -> Denoiser:
        """The student that the method trains."""
        return self.method.student


def prepare(shape: TrainingShape) -> Setup:
    """Random weights; x0 at random, a fixed share of positions masked, t = 1/2."""
    torch.manual_seed(shape.seed)
    process = build_process(shape.process)
    teacher = Denoiser(build_network(shape.network), process, labels=shape.labels).requires_grad_(False)
    network = build_network({**shape.network, "latent": {"inject": shape.inject}})
    student = Denoiser(network, process, LatentPrior(), shape.labels)
    config = Di4CConfig(
        latents=shape.latents,
        step=StepConfig(low=shape.step, high=shape.step),
        chunk_mb=shape.chunk_mb,
        cache_mb=shape.cache_mb,
    )
    noise, length = Noise(shape.seed, range(shape.batch), "bench"), student.length
    x0 = (noise.uniform("x0", length) * process.symbols).long()
    t = torch.full((shape.batch,), 0.5, dtype=torch.float64)
    if process.mask is None:
        x_t = process.corrupt(x0, t, noise.uniform("corrupt", length))
    else:
        rank = noise.uniform("order", length).argsort(-1).argsort(-1)
        x_t = torch.where(rank < round(shape.masked * length), process.mask, x0)
    step = torch.full_like(t, shape.step)
    times = SampledTimes(t, t - step, step, torch.full_like(t, 0.02))
    label = (noise.uniform("label") * shape.labels).long() if shape.labels else None
    return Setup(Di4C(config, student, teacher), NoisedBatch(x_t, x0, label, times, noise))


class Body:
    """Teacher at t, student at u, student at t and its backward pass; no head and no loss."""

    def __init__(self, setup: Setup) -> None:
        self.setup = setup

    def step(self) -> Tensor:
        """Make one step and return its loss."""
        method, batch = self.setup.method, self.setup.batch
        count, u = method.config.latents, batch.times.u
        with torch.no_grad():
            method.teacher.predict(batch.x_t, batch.times.t, batch.label)
            lam = method.student.draw_latent(batch.noise, "lam/u", batch.x_t, u, batch.label, count)
            inputs = repeat(batch.x_t, count), repeat(u, count), repeat_label(batch.label, count)
            method.student.predict(*inputs, flat_latents(lam))
        hidden = method.student_at_t(batch).hidden
        hidden.backward(torch.full_like(hidden, 1e-6))
        return torch.zeros(())


class Dense(Body):
    """Body with the head at all positions and the readable loss of `methods/di4c.py`."""

    def step(self) -> Tensor:
        method, batch = self.setup.method, self.setup.batch
        with torch.no_grad():
            inputs = method.inputs_at_t(batch)
        loss = dense_loss(inputs, method.student_at_t(batch))
        loss.backward()
        return loss.detach()


class Ours(Body):
    """Body with the loss as training calls it."""

    def step(self) -> Tensor:
        loss = self.setup.method.loss_of(self.setup.batch).total
        loss.backward()
        return loss.detach()


class Training(Ours):
    """A whole training step: ours with activation checkpointing, Adam and EMA."""

    def __init__(self, setup: Setup) -> None:
        super().__init__(setup)
        network: Any = setup.method.student.network
        network.checkpointing = True
        self.optimizer = torch.optim.Adam(setup.method.student.parameters(), lr=3e-5)
        self.ema = [p.detach().clone() for p in setup.method.student.parameters()]

    def step(self) -> Tensor:
        loss = super().step()
        self.optimizer.step()
        with torch.no_grad():
            for mean, p in zip(self.ema, self.setup.method.student.parameters()):
                mean.lerp_(p, 1e-4)
        return loss


KINDS: dict[str, type[Body]] = {"body": Body, "dense": Dense, "ours": Ours, "step": Training}


def timed(side: Body) -> dict[str, float]:
    """One step from zeroed gradients: wall time, CPU time, loss and peak memory."""
    side.setup.student.zero_grad(set_to_none=True)
    started, busy = time.perf_counter(), time.process_time()
    loss = float(side.step())
    seconds, cpu = time.perf_counter() - started, time.process_time() - busy
    return {"seconds": seconds, "cpu": cpu, "loss": loss, "peak": peak_memory()}


def serve() -> None:
    """Read a side and a shape from the first line of stdin, then make one step per line until it closes."""
    memory = physical_memory()
    resource.setrlimit(resource.RLIMIT_DATA, (memory, memory))  # sizes that cannot fit end here, not the machine
    first = json.loads(sys.stdin.readline())
    shape = TrainingShape(**first["shape"])
    if shape.threads:
        torch.set_num_threads(shape.threads)
    try:
        side = KINDS[first["side"]](prepare(shape))
    except UserError as error:  # sizes that do not go together
        print(json.dumps({"mistake": error.message, "hint": error.hint}), flush=True)
        return
    gc.collect()
    reset_peak_memory()  # building the models must not count
    print(json.dumps({"threads": torch.get_num_threads(), "torch": torch.__version__}), flush=True)
    for _ in sys.stdin:
        print(json.dumps(timed(side)), flush=True)


if __name__ == "__main__":
    serve()
