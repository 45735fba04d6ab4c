"""Predictions for a sampler: fresh λ, labels, guidance, temperature and tiles behind one call."""

from __future__ import annotations

import torch
from torch import Tensor

from di4c_cli.denoiser import Denoiser, Prediction
from di4c_cli.draw import finest
from di4c_cli.noise import Noise
from di4c_cli.sampler.plan import SamplingPlan
from di4c_cli.sampler.tiles import predict


class Predictor:
    """Predictions of one denoiser for a batch of samples with labels (B,) or none."""

    def __init__(self, denoiser: Denoiser, plan: SamplingPlan, label: Tensor | None = None) -> None:
        self.denoiser, self.plan, self.label = denoiser, plan, label
        self.process = denoiser.process
        self.guided = label is not None and plan.guidance != 0
        self.left, self.blocks = 0, 1

    def at(self, time: float, left: int = 0, blocks: int = 1) -> Predictor:
        """The same predictor for a step from `time` of a block with `left` of all `blocks` after it.

        Guidance has no weight at t = 1, unless that is the only step.
        """
        self.left, self.blocks = left, blocks
        weight = self.plan.guidance * (1 - time) if self.plan.steps > 1 else self.plan.guidance
        self.guided = self.label is not None and weight != 0
        return self

    def __call__(
        self, x_t: Tensor, t: Tensor, noise: Noise, only: Tensor | None = None, wanted: Tensor | None = None
    ) -> Prediction:
        """p(x0|xt; λ) for x_t `(B, D)` at times t `(B,)`, or for the samples `only` (k,) of that batch.

        `wanted` (k, D) marks the only positions that are used later. λ is drawn once per sample and call, from
        the stream of `noise`; both guidance branches share it. The network's time is that of the whole sample, of which
        the later blocks are masked.
        """
        label, of_block = self.label, t
        if self.blocks > 1:
            t = (self.left + t) / self.blocks
        lam = self.denoiser.draw_latent(noise, "latent", x_t, t, label)
        if only is not None:
            x_t, t = x_t[only], t[only]
            lam = None if lam is None else lam[only]
            label = None if label is None else label[only]
        tiles = {"tile": self.plan.tile, "head_rows": self.plan.head_rows}
        prediction = predict(self.denoiser, x_t, t, label, lam, **tiles, wanted=wanted)
        if label is not None and self.guided:
            weight = guidance_weight(self.plan.guidance, of_block if only is None else of_block[only], self.plan.steps)
            without = predict(self.denoiser, x_t, t, torch.full_like(label, -1), lam, **tiles, wanted=wanted)
            prediction = GuidedPrediction(prediction, without, weight)
        if self.plan.temperature != 1 or self.plan.top_p != 1:
            prediction = ShapedPrediction(prediction, self.plan.temperature, self.plan.top_p)
        return prediction


def guidance_weight(guidance: float, t: Tensor, steps: int) -> Tensor:
    """w = w_cfg (1 - t) N / (N - 1), `(B,)` (section cfg): 0 at t = 1, w_cfg at the end and when N = 1."""
    if steps == 1:
        return torch.full_like(t, guidance)
    return guidance * (1 - t) * steps / (steps - 1)


class GuidedPrediction(Prediction):
    """Classifier-free guidance (section cfg): p[w] ∝ p(·|xt, c)^{1+w} p(·|xt)^{-w}, same x_t and λ, w `(B,)`."""

    def __init__(self, conditional: Prediction, unconditional: Prediction, weight: Tensor) -> None:
        super().__init__(conditional.network, conditional.process, conditional.x_t, conditional.hidden)
        self.conditional, self.unconditional, self.weight = conditional, unconditional, weight

    def logits(self, b: Tensor, d: Tensor) -> Tensor:
        """`(n, S)`: (1 + w) conditional - w unconditional, up to a constant per row."""
        with_label, without = self.conditional.logits(b, d), self.unconditional.logits(b, d)
        weight = self.weight.to(with_label)[b, None]
        return (1 + weight) * with_label - weight * without


class ShapedPrediction(Prediction):
    """Temperature and nucleus (top-p): p^{1/T}, normalised, then cut to its nucleus."""

    def __init__(self, inner: Prediction, temperature: float = 1.0, top_p: float = 1.0) -> None:
        super().__init__(inner.network, inner.process, inner.x_t, inner.hidden)
        self.inner, self.temperature, self.top_p = inner, temperature, top_p

    def logits(self, b: Tensor, d: Tensor) -> Tensor:
        """`(n, S)` at rows `(b, d)`."""
        logits = self.inner.logits(b, d) / self.temperature
        return logits if self.top_p == 1 else nucleus(logits, self.top_p)


def nucleus(logits: Tensor, top_p: float) -> Tensor:
    """Keep the fewest most probable symbols whose mass reaches `top_p`, at least one; the others get -inf."""
    p, order = torch.softmax(logits.to(finest(logits.device)), -1).sort(dim=-1, descending=True, stable=True)
    before = p.cumsum(-1) - p
    drop = torch.zeros_like(before, dtype=torch.bool).scatter_(-1, order, before >= top_p)
    return logits.masked_fill(drop, -torch.inf)
