"""Pretraining: cross-entropy of x0 given x_t at the unknown positions.

For masked diffusion with m_t = t the number of masked positions is uniform on 0 … D. The mean over them and over
samples with at least one is then the negative ELBO of x0 divided by D, in nats per position.
"""

from __future__ import annotations

import torch
from torch import Tensor

from di4c_cli import memory
from di4c_cli.methods.base import Loss, Method
from di4c_cli.methods.denoising_config import DenoisingConfig
from di4c_cli.methods.kernels import negative_log_likelihood
from di4c_cli.methods.noised_batch import TrainingSamples, corrupt_data
from di4c_cli.methods.times import even_time
from di4c_cli.noise import Noise


class Denoising(Method):
    """Mean negative log-likelihood of the unknown positions of each sample, averaged over samples."""

    config: DenoisingConfig

    def loss(self, batch: TrainingSamples, noise: Noise, progress: float = 1.0) -> Loss:
        return self._loss(batch, noise, dropout=True)

    @torch.no_grad()
    def held_out_loss(self, batch: TrainingSamples, noise: Noise) -> tuple[Tensor, Tensor]:
        """The loss of each sample `(B,)` without dropout, and which samples have unknown positions `(B,)`."""
        found = self._loss(batch, noise, dropout=False)
        return found.terms["denoising"], found.active["denoising"]

    def _loss(self, batch: TrainingSamples, noise: Noise, dropout: bool) -> Loss:
        t = even_time(self.config.time, noise)
        x_t, x0 = corrupt_data(self.student.process, batch, t, noise)
        unknown = self.student.process.unknown(x_t).sum(1)
        prediction = self.student.predict(x_t, t, batch.label, None, dropout)
        weight = 1.0 / unknown.clamp_min(1).to(t)
        sizes = self.config.loss_memory(memory.gpu_memory(x0.device))
        total, nll = negative_log_likelihood(prediction, x0, weight, *sizes)
        return Loss(total, {"denoising": nll * weight.to(nll)}, {"denoising": unknown > 0})
