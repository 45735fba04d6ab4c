"""A BERT-like encoder with its masked-language-model head, as BERT, RoBERTa and ESM-2 have it: no time, no labels."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from functools import partial
from typing import Any

import torch.nn.functional as F
from torch import Tensor, nn

from di4c_cli.errors import UserError
from di4c_cli.latent.config import LatentConfig
from di4c_cli.network.encoder import EncoderBlock, EncoderNetwork, GroupedAttention
from di4c_cli.network.rotary import Rotary
from di4c_cli.numerics import without_autocast

ACTIVATIONS: dict[str, Callable[[Tensor], Tensor]] = {
    "gelu": F.gelu,
    "gelu_new": partial(F.gelu, approximate="tanh"),
    "relu": F.relu,
    "silu": F.silu,
}
ESM_TRAINED_SHARE = 1 - 0.15 * 0.8
"""Share of tokens that ESM saw unmasked in training."""


class Mlp(nn.Module):
    """Linear, activation, linear."""

    def __init__(self, width: int, mlp: int, activation: str) -> None:
        super().__init__()
        self.up_proj, self.down_proj = nn.Linear(width, mlp), nn.Linear(mlp, width)
        self.activation = ACTIVATIONS[activation]

    def forward(self, x: Tensor) -> Tensor:
        return self.down_proj(self.activation(self.up_proj(x)))


class Bert(EncoderNetwork):
    """Encoder over tokens 0..S, where S is the mask; `body` and `head` as in docs/architecture.md.

    `positions`: `learned`, row d of a table; `counted`, row k of a table for the k-th token that is no padding, row 0
    for padding (RoBERTa); or `rotary`. Tokens of the id `padding` are not attended to. With `token_dropout` masks are
    embedded as zero and the other tokens scaled by their share (ESM).
    """

    def __init__(
        self,
        symbols: int,
        length: int,
        width: int,
        depth: int,
        heads: int,
        mlp: int,
        positions: str = "learned",
        padding: int | None = None,
        pre_norm: bool = False,
        embed_norm: bool = True,
        token_dropout: bool = False,
        activation: str = "gelu",
        head_activation: str = "gelu",
        eps: float = 1e-12,
        rope_base: float = 10000.0,
        tied: bool = True,
        dropout: float = 0.0,
        latent: LatentConfig | Mapping[str, Any] | None = None,
    ) -> None:
        super().__init__()
        self.start(symbols, length, width, depth, tied, bias=True)
        if width % heads or (positions == "rotary" and width // heads % 2):
            rule = "an even multiple" if positions == "rotary" else "a multiple"
            raise UserError(f"width {width} must be {rule} of {heads} heads.", "Choose another width.")
        if positions == "counted" and padding is None:
            raise UserError("Counted positions need the id of the padding.", "Set padding.")
        self.positions, self.padding, self.token_dropout = positions, padding, token_dropout
        norm = partial(nn.LayerNorm, width, eps=eps)
        self.rotary_emb = Rotary(width // heads, rope_base) if positions == "rotary" else None
        if positions != "rotary":
            self.embed_positions = nn.Embedding(length + (positions == "counted"), width)
        self.embed_norm = norm() if embed_norm else None
        sizes = (width, heads, heads, width // heads, True, True)
        self.layers = nn.ModuleList(
            EncoderBlock(GroupedAttention(*sizes), Mlp(width, mlp, activation), norm, pre_norm, dropout)
            for _ in range(depth)
        )
        self.norm = norm() if pre_norm else None
        self.transform, self.transform_norm = nn.Linear(width, width), norm()
        self.head_activation = ACTIVATIONS[head_activation]
        self.init_plain()
        self.add_latent(latent, depth, 4)

    def embed(self, x: Tensor, kept: Tensor | None) -> Tensor:
        """Tokens `(B, D)`, of which `kept` are no padding -> `(B, D, H)`."""
        hidden = self.embed_tokens(x)
        if self.token_dropout:
            masked = x == self.symbols
            total = x.shape[1] if kept is None else kept.sum(1).clamp_min(1)
            shown = 1 - masked.sum(1).to(hidden.dtype) / total
            scale = ESM_TRAINED_SHARE / shown.clamp_min(0.5 / x.shape[1])  # a sample of masks alone has shown = 0
            hidden = hidden.masked_fill(masked[..., None], 0.0) * scale[:, None, None]
        if self.positions == "counted" and kept is not None:
            hidden = hidden + self.embed_positions(kept.cumsum(1) * kept)
        elif self.positions == "learned":
            hidden = hidden + self.embed_positions.weight[: x.shape[1]]
        if self.embed_norm is not None:
            hidden = self.embed_norm(hidden)
        return hidden

    def body(
        self, x: Tensor, t: Tensor, label: Tensor | None = None, lam: Tensor | None = None, at: Tensor | None = None
    ) -> Tensor:
        """Tokens `(B, D)` -> input of the head `(B, D, H)`, or `(B, n, H)` at positions `at`; the time is not used."""
        kept = seen = None
        if self.padding is not None:
            kept = x != self.padding
            seen = kept | ~kept.any(1, keepdim=True)  # a softmax over no key at all would be NaN
        with without_autocast(x.device):
            hidden = self.embed(x, kept)
        hidden = self.encode(hidden, lam, seen, at)
        if self.norm is not None:
            hidden = self.norm(hidden)
        return self.transform_norm(self.head_activation(self.transform(hidden)))
