"""A denoiser at work in a sampler: fresh λ, labels, guidance, temperature and tiles behind one call."""

from __future__ import annotations

import torch
from torch import Tensor

from di4c_cli.denoiser import Denoiser, Prediction
from di4c_cli.noise import Noise
from di4c_cli.sampler.grid import guidance_weight
from di4c_cli.sampler.guidance import GuidedPrediction
from di4c_cli.sampler.settings import Settings
from di4c_cli.sampler.shape import ShapedPrediction
from di4c_cli.sampler.tiles import predict


class Predictor:
    """Predictions of one denoiser for a batch of samples with labels (B,) or none."""

    def __init__(
        self, denoiser: Denoiser, settings: Settings, length: int, label: Tensor | None = None
    ) -> None:
        self.denoiser, self.settings, self.label = denoiser, settings, label
        self.process = denoiser.process
        self.tile = settings.tile_for(length)
        self.head_rows = settings.head_rows_for(denoiser.symbols)

    def __call__(
        self,
        x_t: Tensor,
        t: Tensor,
        noise: Noise,
        only: Tensor | None = None,
        wanted: Tensor | None = None,
    ) -> Prediction:
        """p(x0|xt; λ) for x_t `(B, D)` at times t `(B,)`, or for the samples `only` (k,) of that batch.

        `wanted` (k, D) promises that no other position will be asked for.
        λ is drawn once per sample and call, from the stream of `noise`; both guidance branches share it.
        """
        label = self.label
        lam = self.denoiser.draw_latent(noise, "latent", x_t, t, label)
        if only is not None:
            x_t, t = x_t[only], t[only]
            lam = None if lam is None else lam[only]
            label = None if label is None else label[only]
        prediction = self._run(x_t, t, label, lam, wanted)
        weight = guidance_weight(self.settings.guidance, t, self.settings.steps)
        # the ramp is 0 at t = 1: the unconditional branch would be weighted with nothing
        if label is not None and bool((weight != 0).any()):
            prediction = GuidedPrediction(
                prediction, self._run(x_t, t, torch.full_like(label, -1), lam, wanted), weight
            )
        if self.settings.temperature != 1 or self.settings.top_p != 1:
            prediction = ShapedPrediction(prediction, self.settings.temperature, self.settings.top_p)
        return prediction

    def _run(
        self, x_t: Tensor, t: Tensor, label: Tensor | None, lam: Tensor | None, wanted: Tensor | None
    ) -> Prediction:
        return predict(self.denoiser, x_t, t, label, lam, self.tile, self.head_rows, wanted)
