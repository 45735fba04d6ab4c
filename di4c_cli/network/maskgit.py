"""The MaskGIT transformer over VQ codes: learned positions, one class token, output tied to the token table.

Parameter names are the published ones. Package `sampler` has guidance and the confidence sampler.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any, cast

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from di4c_cli.errors import UserError
from di4c_cli.latent.config import LatentConfig
from di4c_cli.latent.injection import ConditionedTransformer
from di4c_cli.network.attention import attention
from di4c_cli.numerics import checkpointed, without_autocast

OUTER_EPS = 1e-12  # of the layer norms before and after the blocks; the blocks use torch's 1e-5


class FusedAttention(nn.Module):
    """Multi-head attention with the parameter names of torch's, by `network.attention`."""

    def __init__(self, width: int, heads: int, dropout: float) -> None:
        super().__init__()
        self.heads, self.dropout = heads, dropout
        self.in_proj_weight = nn.Parameter(torch.empty(3 * width, width))
        self.in_proj_bias = nn.Parameter(torch.zeros(3 * width))
        self.out_proj = nn.Linear(width, width)

    def forward(self, x: Tensor, at: Tensor | None = None) -> Tensor:
        """x `(B, T, H)` -> the same shape, or `(B, n, H)` with queries at positions `at` (n,) only."""
        weight, bias, width = self.in_proj_weight, self.in_proj_bias, x.shape[2]
        if at is None:
            q, k, v = F.linear(x, weight, bias).unflatten(2, (3, self.heads, -1)).transpose(1, 3).unbind(2)
        else:
            q = F.linear(x[:, at], weight[:width], bias[:width]).unflatten(2, (self.heads, -1)).transpose(1, 2)
            k, v = F.linear(x, weight[width:], bias[width:]).unflatten(2, (2, self.heads, -1)).transpose(1, 3).unbind(2)
        dropout = self.dropout if self.training else 0.0
        mixed = attention(q, k, v, dropout)
        return self.out_proj(mixed.transpose(1, 2).flatten(2))


class Attention(nn.Module):
    """The published name `fn.mha`."""

    def __init__(self, width: int, heads: int, dropout: float) -> None:
        super().__init__()
        self.mha = FusedAttention(width, heads, dropout)

    def forward(self, x: Tensor, at: Tensor | None = None) -> Tensor:
        return self.mha(x, at)


class FeedForward(nn.Module):
    """The published name `fn.net`; the dropouts keep their places in the numbering."""

    def __init__(self, width: int, mlp: int, dropout: float) -> None:
        super().__init__()
        self.net = nn.Sequential(
            nn.Linear(width, mlp), nn.GELU(), nn.Dropout(dropout), nn.Linear(mlp, width), nn.Dropout(dropout)
        )

    def forward(self, x: Tensor) -> Tensor:
        return self.net(x)


class PreNorm(nn.Module):
    """Layer norm, λ modulation if there is one, then `fn`."""

    def __init__(self, width: int, fn: nn.Module) -> None:
        super().__init__()
        self.norm = nn.LayerNorm(width)
        self.fn = fn

    def forward(self, x: Tensor, film: Tensor | None, *at: Tensor | None) -> Tensor:
        """x `(B, T, H)`; film `(2, B, 1, H)` holds shift and scale."""
        u = self.norm(x)
        if film is not None:
            u = torch.addcmul(film[0], u, 1 + film[1])
        return self.fn(u, *at)


class Transformer(nn.Module):
    """The blocks: `layers.N.0` attends, `layers.N.1` is the MLP."""

    def __init__(self, width: int, depth: int, heads: int, mlp: int, dropout: float) -> None:
        super().__init__()
        self.layers = nn.ModuleList(
            nn.ModuleList(
                (PreNorm(width, Attention(width, heads, dropout)), PreNorm(width, FeedForward(width, mlp, dropout)))
            )
            for _ in range(depth)
        )

    @staticmethod
    def block(layer: nn.ModuleList, x: Tensor, film: Tensor | None, at: Tensor | None) -> Tensor:
        """One block; film `(4, B, 1, H)` holds shift and scale for each of the two norms."""
        attend, mlp = layer
        first, second = (None, None) if film is None else film.chunk(2)
        x = (x if at is None else x[:, at]) + attend(x, first, at)
        return x + mlp(x, second)

    def forward(self, x: Tensor, film: Tensor | None, checkpointing: bool, at: Tensor | None) -> Tensor:
        """x `(B, T, H)`, film `(B, depth, 4, H)` or None; the last block has queries at positions `at` (n,)."""
        for i, layer in enumerate(cast("list[nn.ModuleList]", list(self.layers))):
            own = None if film is None else film[:, i].transpose(0, 1)[:, :, None]
            where = at if i == len(self.layers) - 1 else None
            x = checkpointed(checkpointing, self.block, layer, x, own, where)
        return x


class MaskGit(ConditionedTransformer):
    """Transformer over codes 0..K, where K is the mask; `body` and `head` as in docs/architecture.md.

    Rows of the token table: K codes, the mask, `labels` classes, "no class".
    """

    def __init__(
        self,
        symbols: int,
        length: int,
        width: int,
        depth: int,
        heads: int,
        mlp: int,
        labels: int | None = None,
        dropout: float = 0.0,
        latent: LatentConfig | Mapping[str, Any] | None = None,
    ) -> None:
        super().__init__()
        if width % heads:
            raise UserError(f"width {width} must be a multiple of {heads} heads.", "Choose another width.")
        self.symbols, self.length, self.width, self.labels = symbols, length, width, labels or 0
        self.checkpointing = False
        rows = symbols + 1 + self.labels + 1
        self.pos_emb = nn.Parameter(torch.zeros(1, length + 1, width))
        self.bias = nn.Parameter(torch.zeros(length + 1, rows))
        self.tok_emb = nn.Embedding(rows, width)
        self.first_layer = nn.Sequential(*self._outer(width, dropout), nn.Dropout(dropout), nn.Linear(width, width))
        self.transformer = Transformer(width, depth, heads, mlp, dropout)
        self.last_layer = nn.Sequential(*self._outer(width, dropout))
        self._init_plain()
        self.add_latent(latent, depth, 4, self.labels)

    @staticmethod
    def _outer(width: int, dropout: float) -> list[nn.Module]:
        """Modules 0 to 4 of the stacks before and after the blocks."""
        return [
            nn.LayerNorm(width, eps=OUTER_EPS),
            nn.Dropout(dropout),
            nn.Linear(width, width),
            nn.GELU(),
            nn.LayerNorm(width, eps=OUTER_EPS),
        ]

    def _init_plain(self) -> None:
        """Small normal matrices; vectors stay at 0, norms at 1."""
        for name, parameter in self.named_parameters():
            if parameter.dim() > 1 and name != "bias":
                nn.init.trunc_normal_(parameter, std=0.02)
            elif name.endswith("bias"):
                nn.init.zeros_(parameter)

    def class_token(self, x: Tensor, label: Tensor | None) -> Tensor:
        """Row of the token table for each sample's class, `(B, 1)`; -1 and None mean "no class"."""
        nothing = self.symbols + 1 + self.labels
        if label is None:
            return x.new_full((x.shape[0], 1), nothing)
        return torch.where(label < 0, nothing, self.symbols + 1 + label)[:, None]

    def body(
        self, x: Tensor, t: Tensor, label: Tensor | None = None, lam: Tensor | None = None, at: Tensor | None = None
    ) -> Tensor:
        """Codes `(B, D)` -> states `(B, D, H)` to be multiplied with the token table; the time is not used.

        With `at` (n,) the result is `(B, n, H)`, as in `DiT.body`.
        """
        with without_autocast(x.device):
            token, film = self.latent_vectors(lam)
            hidden = self.tok_emb(torch.cat((x, self.class_token(x, label)), dim=1)) + self.pos_emb
            hidden = self.add_field(hidden, lam)
        if token is not None:
            hidden = torch.cat((hidden, token), dim=1)  # after the class token and without a position
        # Under autocast the sums along the blocks stay in the weights' precision.
        hidden = self.first_layer(hidden).to(hidden.dtype)
        hidden = self.transformer(hidden, film, self.checkpointing, at)
        return self.last_layer(hidden[:, : self.length] if at is None else hidden)

    @property
    def linear_head(self) -> tuple[Tensor, Tensor]:
        """The head is h·Wᵀ + b[d] over the first S rows of W `(rows, H)` and columns of b `(D + 1, rows)`."""
        return self.tok_emb.weight, self.bias

    def head(self, h: Tensor, d: Tensor) -> Tensor:
        """Hidden rows `(n, H)` at positions d `(n,)` -> logits over the real symbols `(n, S)`."""
        table = self.tok_emb.weight[: self.symbols]
        return torch.addmm(self.bias[:, : self.symbols][d], h.to(table.dtype), table.T)
