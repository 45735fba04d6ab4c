"""Training a denoiser from scratch: how the embedded teachers were made (`di4c pretrain`)."""

from __future__ import annotations

import copy
import json
import time
from collections.abc import Callable
from dataclasses import dataclass, field
from functools import partial
from typing import Any

import torch
from torch import Tensor

from di4c_cli.denoiser import Denoiser
from di4c_cli.noise import Noise

Samples = tuple[Tensor, Tensor | None]
"""x0 `(N, D)` and labels `(N,)`, if any."""
Report = Callable[[dict[str, Any]], None]


@dataclass
class Schedule:
    """How long and how fast; a cosine learning-rate decay to a tenth, early stopping on held-out data."""

    iterations: int
    batch: int
    lr: float
    warmup: int = 100
    weight_decay: float = 0.01
    betas: tuple[float, float] = (0.9, 0.98)
    ema: float = 0.999
    clip: float = 1.0
    label_drop: float = 0.1
    evaluate_every: int = 200
    patience: int = 5
    seed: int = 0
    time_low: float = 0.0


@dataclass
class History:
    """What happened: validation figures by step and the best one."""

    rows: list[dict[str, float]] = field(default_factory=list)
    best: float = float("inf")
    best_step: int = 0
    stale: int = 0
    """Evaluations since the best one."""
    seconds: float = 0.0

    def add(self, row: dict[str, float]) -> dict[str, float]:
        """Take in an evaluation; gives it back."""
        self.rows.append(row)
        if row["held_out"] < self.best:
            self.best, self.best_step, self.stale = row["held_out"], int(row["step"]), 0
        else:
            self.stale += 1
        return row


def denoising_loss(
    denoiser: Denoiser, x0: Tensor, label: Tensor | None, t: Tensor, uniform: Tensor, train: bool
) -> Tensor:
    """Cross-entropy of x0 given x_t in nats per unknown position, averaged per sample `(B,)`.

    For masked diffusion with m_t = t this is the usual likelihood bound, divided by D.
    """
    process = denoiser.process
    x_t = process.corrupt(x0, t, uniform)
    prediction = denoiser.predict(x_t, t, label, None, dropout=train)
    unknown = process.unknown(x_t)
    b, d = unknown.nonzero(as_tuple=True)
    loss = -prediction.log_probs(b, d).gather(1, x0[b, d][:, None]).squeeze(1)
    total = torch.zeros(len(x0), dtype=loss.dtype, device=loss.device).index_add(0, b, loss)
    return total / unknown.sum(1).clamp_min(1)


def _times(noise: Noise, low: float) -> Tensor:
    """One stratified time per sample: the batch covers [low, 1] evenly, which steadies the loss."""
    count = len(noise)
    shift = noise.uniform("t")[:1]
    return low + (1 - low) * ((torch.arange(count) / count + shift) % 1.0)


@torch.no_grad()
def validate(denoiser: Denoiser, x: Tensor, label: Tensor | None, low: float, chunk: int = 250) -> float:
    """Mean denoising loss on held-out samples with fixed noise."""
    losses = []
    for start in range(0, len(x), chunk):
        part = x[start : start + chunk]
        noise = Noise(0, range(start, start + len(part)), "validate")
        t = _times(noise, low)
        part_label = None if label is None else label[start : start + chunk]
        losses.append(
            denoising_loss(denoiser, part, part_label, t, noise.uniform("corrupt", part.shape[1]), False)
        )
    return float(torch.cat(losses).mean())


def pretrain(
    denoiser: Denoiser,
    train: Samples,
    held_out: Samples,
    schedule: Schedule,
    report: Report = lambda row: print(json.dumps(row), flush=True),
) -> tuple[Denoiser, History]:
    """Train, keep the EMA weights that did best on held-out data, stop when they no longer improve."""
    torch.manual_seed(schedule.seed)  # dropout alone uses the global generator
    optimizer = torch.optim.AdamW(
        denoiser.parameters(), schedule.lr, betas=schedule.betas, weight_decay=schedule.weight_decay
    )
    scheduler = torch.optim.lr_scheduler.LambdaLR(optimizer, partial(_rate, schedule))
    average, best, history = copy.deepcopy(denoiser), copy.deepcopy(denoiser), History()
    start = time.monotonic()
    for step in range(1, schedule.iterations + 1):
        loss = _batch_loss(denoiser, train, schedule, step)
        optimizer.zero_grad(set_to_none=True)
        loss.backward()
        torch.nn.utils.clip_grad_norm_(denoiser.parameters(), schedule.clip)
        optimizer.step()
        scheduler.step()
        _follow(average, denoiser, min(schedule.ema, (1 + step) / (10 + step)))
        if step % schedule.evaluate_every and step != schedule.iterations:
            continue
        figure = validate(average, *held_out, schedule.time_low)
        row = {"step": step, "train": float(loss.detach()), "held_out": figure}
        report(history.add({**row, "seconds": time.monotonic() - start}))
        if history.best_step == step:
            best.load_state_dict(average.state_dict())
        elif history.stale >= schedule.patience:
            break
    history.seconds = time.monotonic() - start
    return best, history


def _rate(schedule: Schedule, step: int) -> float:
    """Learning rate as a part of the highest: a linear warm-up times a cosine from 1 to a tenth."""
    warm = min(1.0, (step + 1) / max(1, schedule.warmup))
    done = step / schedule.iterations
    return warm * (0.55 + 0.45 * float(torch.cos(torch.tensor(torch.pi * min(1.0, done)))))


def _batch_loss(denoiser: Denoiser, train: Samples, schedule: Schedule, step: int) -> Tensor:
    """Mean loss of a step's batch; its noise decides the items, the dropped labels and the corruption."""
    x, labels = train
    noise = Noise(schedule.seed, range((step - 1) * schedule.batch, step * schedule.batch), "pretrain")
    pick = (noise.uniform("item") * len(x)).long()
    label = None
    if labels is not None:
        label = torch.where(noise.uniform("drop") < schedule.label_drop, -1, labels[pick])
    t, x0 = _times(noise, schedule.time_low), x[pick]
    return denoising_loss(denoiser, x0, label, t, noise.uniform("corrupt", x0.shape[1]), True).mean()


@torch.no_grad()
def _follow(average: Denoiser, denoiser: Denoiser, keep: float) -> None:
    """One step of the EMA."""
    for mean, value in zip(average.parameters(), denoiser.parameters(), strict=True):
        mean.lerp_(value, 1 - keep)
