"""What the Llama-like and the BERT-like network share: attention, blocks, λ, and a linear head over the vocabulary."""

from __future__ import annotations

from collections.abc import Callable
from typing import cast

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from di4c_cli.latent.injection import ConditionedTransformer
from di4c_cli.network.attention import attention
from di4c_cli.network.rotary import Rotary, rotate
from di4c_cli.numerics import checkpointed, precise, without_autocast

Angles = tuple[Tensor, Tensor]


class GroupedAttention(nn.Module):
    """Bidirectional attention; `heads` query heads share `kv_heads` key heads. PEFT knows the layers' names."""

    def __init__(
        self,
        width: int,
        heads: int,
        kv_heads: int,
        head_width: int,
        bias: bool = False,
        out_bias: bool = False,
        norm_eps: float | None = None,
    ) -> None:
        """`norm_eps`: queries and keys have an RMS norm of their own."""
        super().__init__()
        self.heads, self.kv_heads = heads, kv_heads
        self.q_proj = nn.Linear(width, heads * head_width, bias=bias)
        self.k_proj = nn.Linear(width, kv_heads * head_width, bias=bias)
        self.v_proj = nn.Linear(width, kv_heads * head_width, bias=bias)
        self.o_proj = nn.Linear(heads * head_width, width, bias=out_bias)
        if norm_eps is not None:
            self.q_norm, self.k_norm = nn.RMSNorm(head_width, eps=norm_eps), nn.RMSNorm(head_width, eps=norm_eps)
        self.normed = norm_eps is not None

    def forward(self, x: Tensor, angles: Angles | None, seen: Tensor | None, at: Tensor | None) -> Tensor:
        """x `(B, T, H)`, `seen` `(B, 1, 1, T)` -> `(B, T, H)`, or `(B, n, H)` at positions `at` (n,)."""
        q = self.q_proj(x if at is None else x[:, at]).unflatten(2, (self.heads, -1))
        k, v = (layer(x).unflatten(2, (self.kv_heads, -1)) for layer in (self.k_proj, self.v_proj))
        if self.normed:
            q, k = self.q_norm(q).to(v.dtype), self.k_norm(k).to(v.dtype)
        if angles is not None:
            cos, sin = (part[:, 0].to(v.dtype) for part in angles)
            q = rotate(q, cos, sin) if at is None else rotate(q, cos[at], sin[at])
            k = rotate(k, cos, sin)
        q, k, v = (part.transpose(1, 2) for part in (q, k, v))
        return self.o_proj(attention(q, k, v, seen=seen).transpose(1, 2).flatten(2))


class EncoderBlock(nn.Module):
    """Attention and MLP with their norms before them (Llama, ESM) or after the sums (BERT)."""

    def __init__(
        self, attend: GroupedAttention, mlp: nn.Module, norm: Callable[[], nn.Module], pre_norm: bool, dropout: float
    ) -> None:
        super().__init__()
        self.self_attn, self.mlp, self.norm1, self.norm2 = attend, mlp, norm(), norm()
        self.pre_norm, self.dropout = pre_norm, dropout

    def forward(
        self, x: Tensor, film: Tensor | None, angles: Angles | None, seen: Tensor | None, at: Tensor | None
    ) -> Tensor:
        """x `(B, T, H)`; film `(4, B, 1, H)` has shift and scale for the inputs of attention and MLP."""
        first, second = (None, None) if film is None else film.chunk(2)
        change = self.self_attn(self._input(x, self.norm1, first), angles, seen, at)
        x = self._sum(x if at is None else x[:, at], change, self.norm1)
        return self._sum(x, self.mlp(self._input(x, self.norm2, second)), self.norm2)

    def _input(self, x: Tensor, norm: nn.Module, film: Tensor | None) -> Tensor:
        u: Tensor = norm(x) if self.pre_norm else x
        return u if film is None else torch.addcmul(film[0], u, 1 + film[1])

    def _sum(self, x: Tensor, change: Tensor, norm: nn.Module) -> Tensor:
        total = x + F.dropout(change, self.dropout, self.training)
        return total if self.pre_norm else norm(total)


class EncoderNetwork(ConditionedTransformer):
    """Base of both networks: the stack of blocks with λ, and logits h·Wᵀ + b; there is no time input."""

    half_base = True
    """The frozen weights of an adapter may be stored in bfloat16."""

    any_length = True
    """Samples may be shorter than `length`: these models are trained on texts of every length."""
    rotary_emb: Rotary | None
    embed_tokens: nn.Embedding
    lm_head: nn.Linear | None
    layers: nn.ModuleList

    def start(self, symbols: int, length: int, width: int, depth: int, tied: bool, bias: bool) -> None:
        """Sizes, token table and head: S rows for the symbols, one for the mask; a tied head has its bias alone."""
        self.symbols, self.length, self.width, self.depth = symbols, length, width, depth
        self.checkpointing = False
        self.embed_tokens = nn.Embedding(symbols + 1, width)
        self.lm_head = None if tied else nn.Linear(width, symbols + 1, bias=False)
        self.lm_bias = nn.Parameter(torch.zeros(symbols + 1)) if bias else None

    def init_plain(self) -> None:
        """Small normal matrices; vectors stay at 0, norms at 1."""
        for name, parameter in self.named_parameters():
            if parameter.dim() > 1:
                nn.init.normal_(parameter, std=0.02)
            elif name.endswith("bias"):
                nn.init.zeros_(parameter)

    def encode(
        self, hidden: Tensor, lam: Tensor | None, seen: Tensor | None = None, at: Tensor | None = None
    ) -> Tensor:
        """Embedded positions `(B, D, H)`, of which `seen` (B, D) are attended to -> output of the last block.

        With `at` (n,) the last block has queries at those positions only, and the result is `(B, n, H)`.
        """
        length = hidden.shape[1]
        with without_autocast(hidden.device):
            token, film = self.latent_vectors(lam)
            hidden = self.add_field(hidden, lam)
        if token is not None:
            hidden = torch.cat((hidden, token.to(hidden.dtype)), dim=1)
        extra = hidden.shape[1] - length
        if seen is not None:
            seen = F.pad(seen, (0, extra), value=True)[:, None, None]
        angles = None if self.rotary_emb is None else self.rotary_emb(length, extra, precise(hidden.dtype))
        for i, block in enumerate(cast("list[EncoderBlock]", list(self.layers))):
            own = None if film is None else film[:, i].transpose(0, 1)[:, :, None]
            where = at if i == self.depth - 1 else None
            hidden = checkpointed(self.checkpointing, block, hidden, own, angles, seen, where)
        return hidden[:, :length] if at is None else hidden

    @property
    def linear_head(self) -> tuple[Tensor, Tensor]:
        """The head is h·Wᵀ + b over the first S rows of W `(S + 1, H)` and b `(S + 1,)`."""
        weight = (self.embed_tokens if self.lm_head is None else self.lm_head).weight
        return weight, weight.new_zeros(len(weight)) if self.lm_bias is None else self.lm_bias

    def head(self, h: Tensor, d: Tensor | None = None) -> Tensor:
        """Hidden rows `(n, H)` at any positions -> logits over the real symbols `(n, S)`."""
        weight, bias = self.linear_head
        if torch.is_autocast_enabled(h.device.type):
            # autocast keeps its copy of a whole weight, but converts a slice anew in every call
            return F.linear(h, weight, bias)[:, : self.symbols]
        return F.linear(h.to(weight.dtype), weight[: self.symbols], bias[: self.symbols])
