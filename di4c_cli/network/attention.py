"""Attention of all positions to all positions, which the transformers of the package call."""

from __future__ import annotations

import torch
import torch.nn.functional as F
from torch import Tensor

MAX_PLAIN_LENGTH = 128
"""Longest sequence whose attention weights are kept for the backward pass."""


def attention(q: Tensor, k: Tensor, v: Tensor, dropout: float = 0.0, seen: Tensor | None = None) -> Tensor:
    """softmax(q kᵀ/√h) v for `(B, heads, T, h)`; `seen` `(B, 1, 1, T)` bool: the keys that are no padding.

    Keys and values may have fewer heads than queries, which then share them. With a gradient in bfloat16 on the CPU
    two matrix products replace torch's fused kernel, whose backward pass is slow there: they take a fifth of its time
    at 64 positions. They round the scores q kᵀ/√h to bfloat16, which the kernel does not.
    """
    grouped = k.shape[1] != q.shape[1]
    plain = q.device.type == "cpu" and q.dtype == torch.bfloat16 and k.shape[2] <= MAX_PLAIN_LENGTH
    plain = plain and not dropout and seen is None and not grouped
    if plain and torch.is_grad_enabled() and q.requires_grad:
        weights = torch.matmul(q * q.shape[-1] ** -0.5, k.transpose(-1, -2)).softmax(-1, dtype=torch.float32)
        return torch.matmul(weights.to(v.dtype), v)
    return F.scaled_dot_product_attention(q, k, v, attn_mask=seen, dropout_p=dropout, enable_gqa=grouped)
