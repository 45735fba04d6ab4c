"""Confidence-based steps of MaskGIT (section mg-sampling): draw everywhere, keep the surest."""

from __future__ import annotations

import torch
from torch import Tensor

from di4c_cli.denoiser import Prediction
from di4c_cli.sampler.rows import Draws


def confidence_step(
    prediction: Prediction,
    x_t: Tensor,
    count: Tensor,
    scale: Tensor,
    value: Tensor,
    gumbel: Tensor,
    draws: Draws | None = None,
) -> Tensor:
    """x_t `(B, D)` -> x_s `(B, *many, D)`: each sample reveals its `count` (B,) surest masked positions.

    conf(d) = log p(x̃0^d | xt) + c_gb ε^d with c_gb = `scale` (B,), ε = `gumbel` (B, *many, D) standard
    Gumbel numbers, x̃0 drawn from `value` (B, *many, D) uniforms. `many` draws share one prediction. A count
    above the number of masked positions reveals them all. `prediction` may be any `Prediction` of x_t.
    `gumbel_scale` and `counts_between` of `sampler.grid` give the paper's scale and count.
    """
    batch, length = x_t.shape
    unknown = prediction.process.unknown(x_t)
    b, d = unknown.nonzero(as_tuple=True)
    uniform, noise = (a.reshape(batch, -1, length).transpose(1, 2) for a in (value, gumbel))  # (B, D, many)
    drawn, log_p = (draws or Draws()).confident(prediction, b, d, uniform[b, d])
    many = uniform.shape[2]
    confidence = torch.full((batch, many, length), -torch.inf, dtype=log_p.dtype, device=x_t.device)
    confidence[b, :, d] = log_p + scale.to(log_p)[b, None] * noise[b, d]
    proposal = x_t[:, None].expand(batch, many, length).clone()
    proposal[b, :, d] = drawn
    # stable, so that equal confidences (scale 0) still reveal exactly `count`, the first positions first
    order = confidence.argsort(dim=-1, descending=True, stable=True)
    wanted = torch.arange(length, device=x_t.device) < torch.minimum(count, unknown.sum(1))[:, None, None]
    reveal = torch.zeros_like(confidence, dtype=torch.bool).scatter_(2, order, wanted.expand_as(order))
    x_s = torch.where(reveal, proposal, x_t[:, None])
    return x_s.view(value.shape)
