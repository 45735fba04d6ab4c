"""Predictions over the mask symbol and at all positions, as the authors' MaskGIT code scores them."""

from __future__ import annotations

from typing import cast

import torch
from torch import Tensor, nn

from di4c_cli.denoiser import Prediction
from di4c_cli.errors import UserError
from di4c_cli.process import Masked, Uniform


class WholeHead:
    """The head of a network over all S real symbols and the mask; its weights are the network's own."""

    def __init__(self, network: nn.Module, symbols: int) -> None:
        self.linear_head: tuple[Tensor, Tensor] = network.linear_head  # type: ignore[assignment]
        self.symbols = symbols

    def head(self, h: Tensor, d: Tensor) -> Tensor:
        """Hidden rows `(n, H)` at positions d `(n,)` -> logits `(n, S + 1)`."""
        weight, bias = self.linear_head
        bias = bias[: self.symbols].expand(len(h), -1) if bias.dim() == 1 else bias[d, : self.symbols]
        return torch.addmm(bias, h.to(weight.dtype), weight[: self.symbols].T)


def with_mask_symbol(prediction: Prediction) -> Prediction:
    """The same prediction, normalised over the real symbols and the mask."""
    process = prediction.process
    if not isinstance(process, Masked) or getattr(prediction.network, "linear_head", None) is None:
        raise UserError(
            "The authors' MaskGIT keys need a masked teacher whose network has a logit for the mask.",
            "Remove method.loss_domain and method.teacher_step.",
        )
    head = cast(nn.Module, WholeHead(prediction.network, process.symbols + 1))
    return Prediction(head, process, prediction.x_t, prediction.hidden)


def whole(prediction: Prediction) -> Prediction:
    """The prediction at all positions, known ones too, over the real symbols and the mask."""
    extended = with_mask_symbol(prediction)
    everywhere = Uniform(prediction.process.symbols + 1)  # a process without a mask: no position is known
    return Prediction(extended.network, everywhere, extended.x_t, extended.hidden)
