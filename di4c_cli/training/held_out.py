"""The held-out loss of the averaged weights during pretraining, and the best weights so far."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from dataclasses import dataclass

import torch
from accelerate import Accelerator
from torch import Tensor

from di4c_cli.data.items import Items
from di4c_cli.data.stream import Batch
from di4c_cli.denoiser import Denoiser
from di4c_cli.methods.denoising import Denoising
from di4c_cli.methods.denoising_config import DenoisingConfig
from di4c_cli.noise import Noise

SAMPLES = 1000
"""Held-out samples of an evaluation, spread evenly over the data."""
BATCH = 50


@dataclass(frozen=True)
class HeldOut:
    """Held-out data and how often it is evaluated; training stops after `patience` evaluations without a new best."""

    items: Items
    labels: int | None
    method: DenoisingConfig
    every: int
    patience: int
    denoiser: Callable[[dict[str, Tensor]], Denoiser]
    """The network with given weights."""
    at_start: bool = False
    """Evaluate before the first step too: a model to start from is kept if training never improves it."""

    def due(self, step: int, iterations: int) -> bool:
        """Whether step number `step` ends with an evaluation."""
        return step % self.every == 0 or step == iterations

    def loss(self, tensors: dict[str, Tensor], accelerator: Accelerator) -> float:
        """Mean loss with fixed noise, shared among the processes; every process must call this."""
        method = Denoising(self.method, self.denoiser(tensors).to(accelerator.device))
        sums = torch.zeros(2, dtype=torch.float32 if accelerator.device.type == "mps" else torch.float64)
        sums = sums.to(accelerator.device)
        for number, batch in enumerate(self._batches()):
            if number % accelerator.num_processes == accelerator.process_index:
                noise = Noise(0, batch.index, "held-out", accelerator.device)
                loss, counted = method.held_out_loss(batch.to(accelerator.device), noise)
                sums += torch.stack([loss[counted].sum(), counted.sum()]).to(sums)
        total, count = accelerator.reduce(sums, reduction="sum").tolist()
        return total / max(count, 1)

    def _batches(self) -> Iterator[Batch]:
        size = len(self.items)
        picks = [number * size // SAMPLES for number in range(SAMPLES)] if size > SAMPLES else list(range(size))
        for start in range(0, len(picks), BATCH):
            chosen = picks[start : start + BATCH]
            x0, label = self.items.rows(chosen)
            yield Batch(list(range(start, start + len(chosen))), x0, None if self.labels is None else label)
