"""Discrete classifier-free guidance (section cfg): the labelled law sharpened against the unlabelled."""

from __future__ import annotations

from torch import Tensor

from di4c_cli.denoiser import Prediction


class GuidedPrediction(Prediction):
    """p[w] ∝ p(·|xt, c)^{1+w} p(·|xt)^{-w}: two predictions of the same x_t with the same λ, w `(B,)`."""

    def __init__(self, conditional: Prediction, unconditional: Prediction, weight: Tensor) -> None:
        super().__init__(conditional.network, conditional.process, conditional.x_t, conditional.hidden)
        self.conditional, self.unconditional, self.weight = conditional, unconditional, weight

    def logits(self, b: Tensor, d: Tensor) -> Tensor:
        """`(n, S)`: (1 + w) conditional - w unconditional, up to a constant per row."""
        with_label, without = self.conditional.logits(b, d), self.unconditional.logits(b, d)
        weight = self.weight.to(with_label)[b, None]
        return (1 + weight) * with_label - weight * without
