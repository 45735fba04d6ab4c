"""A bidirectional Llama-like transformer, as LLaDA, Dream and adapted Qwen models have it: no time input, no labels."""

from __future__ import annotations

from collections.abc import Mapping
from functools import partial
from typing import Any

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from di4c_cli.errors import UserError
from di4c_cli.latent.config import LatentConfig
from di4c_cli.network.encoder import EncoderBlock, EncoderNetwork, GroupedAttention
from di4c_cli.network.rotary import Rotary
from di4c_cli.numerics import without_autocast


class SwiGlu(nn.Module):
    """down(silu(gate(x)) · up(x))."""

    def __init__(self, width: int, mlp: int) -> None:
        super().__init__()
        self.gate_proj, self.up_proj = nn.Linear(width, mlp, bias=False), nn.Linear(width, mlp, bias=False)
        self.down_proj = nn.Linear(mlp, width, bias=False)

    def forward(self, x: Tensor) -> Tensor:
        return self.down_proj(F.silu(self.gate_proj(x)) * self.up_proj(x))


class Llama(EncoderNetwork):
    """RMS norms, rotary positions, grouped-query attention, SwiGLU; `body` and `head` as in docs/architecture.md.

    `shift`: the logits of position d come from the state at d - 1, as in Dream; those of the first from its own.
    """

    def __init__(
        self,
        symbols: int,
        length: int,
        width: int,
        depth: int,
        heads: int,
        mlp: int,
        kv_heads: int | None = None,
        head_width: int | None = None,
        rope_base: float = 10000.0,
        eps: float = 1e-6,
        qkv_bias: bool = False,
        out_bias: bool = False,
        qk_norm: bool = False,
        tied: bool = False,
        shift: bool = False,
        dropout: float = 0.0,
        latent: LatentConfig | Mapping[str, Any] | None = None,
    ) -> None:
        super().__init__()
        self.start(symbols, length, width, depth, tied, bias=False)
        if head_width is None and width % heads:
            raise UserError(f"width {width} must be a multiple of {heads} heads.", "Choose another width.")
        kv_heads, head_width, self.shift = kv_heads or heads, head_width or width // heads, shift
        if heads % kv_heads or head_width % 2:
            problem = f"{heads} heads of width {head_width} cannot share {kv_heads} key heads with rotary positions."
            raise UserError(problem, "Choose an even width and a divisor of the heads.")
        norm = partial(nn.RMSNorm, width, eps=eps)
        sizes = (width, heads, kv_heads, head_width, qkv_bias, out_bias, eps if qk_norm else None)
        self.rotary_emb = Rotary(head_width, rope_base)
        self.layers = nn.ModuleList(
            EncoderBlock(GroupedAttention(*sizes), SwiGlu(width, mlp), norm, True, dropout) for _ in range(depth)
        )
        self.norm = norm()
        self.init_plain()
        self.add_latent(latent, depth, 4)

    def body(
        self, x: Tensor, t: Tensor, label: Tensor | None = None, lam: Tensor | None = None, at: Tensor | None = None
    ) -> Tensor:
        """Tokens `(B, D)` -> input of the head `(B, D, H)`, or `(B, n, H)` at positions `at`; the time is not used."""
        with without_autocast(x.device):
            hidden = self.embed_tokens(x)
        if self.shift and at is not None:
            at = (at - 1).clamp_min(0)
        hidden = self.encode(hidden, lam, at=at)
        if self.shift and at is None:
            hidden = torch.cat((hidden[:, :1], hidden[:, :-1]), dim=1)
        return self.norm(hidden)
