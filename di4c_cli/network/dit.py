"""The diffusion transformer of MDLM and SDTT: rotary attention, blocks modulated by the noise level.

Parameter names and their order are the published ones without the prefix `backbone.`; the denoiser
handles the mask and the known tokens.
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
from di4c_cli.network.rotary import Rotary, rotate
from di4c_cli.numerics import checkpointed, precise, sinusoid, without_autocast

NOISE_FEATURES = 256
LOG_LINEAR_EPS = 1e-3  # of the log-linear noise: σ(t) = -log(1 - (1 - ε) t)


def modulated_norm(x: Tensor, norm: nn.LayerNorm, shift: Tensor, scale: Tensor) -> Tensor:
    """Layer norm, then u·(1 + scale) + shift; shift and scale are `(H,)` for all samples or `(B, 1, H)`.

    A modulation that all samples share becomes the norm's own weight and bias: one pass over x, not two.
    """
    if shift.dim() == 1:
        return F.layer_norm(x, norm.normalized_shape, norm.weight * (1 + scale), shift, norm.eps)
    return torch.addcmul(shift, norm(x), 1 + scale)


class VocabEmbed(nn.Module):
    """Token table `(V, H)`."""

    def __init__(self, states: int, width: int) -> None:
        super().__init__()
        self.embedding = nn.Parameter(torch.empty(states, width).normal_(0.0, 0.02))

    def forward(self, x: Tensor) -> Tensor:
        return F.embedding(x, self.embedding)


class SigmaMap(nn.Module):
    """Noise level σ `(R,)` -> `(R, E)`."""

    def __init__(self, cond_dim: int) -> None:
        super().__init__()
        self.mlp = nn.Sequential(nn.Linear(NOISE_FEATURES, cond_dim), nn.SiLU(), nn.Linear(cond_dim, cond_dim))

    def forward(self, sigma: Tensor) -> Tensor:
        features = sinusoid(sigma, NOISE_FEATURES, cosines_first=True)
        return self.mlp(features.to(next(self.parameters()).dtype))


class Block(nn.Module):
    """Attention and MLP, each behind a modulated norm and a gate."""

    def __init__(self, width: int, heads: int, cond_dim: int, dropout: float) -> None:
        super().__init__()
        self.heads, self.dropout = heads, dropout
        self.norm1 = nn.LayerNorm(width, bias=False)
        self.attn_qkv = nn.Linear(width, 3 * width, bias=False)
        self.attn_out = nn.Linear(width, width, bias=False)
        self.norm2 = nn.LayerNorm(width, bias=False)
        self.mlp = nn.Sequential(nn.Linear(width, 4 * width), nn.GELU(approximate="tanh"), nn.Linear(4 * width, width))
        self.adaLN_modulation = nn.Linear(cond_dim, 6 * width)

    def attention(self, x: Tensor, cos: Tensor, sin: Tensor, at: Tensor | None = None) -> Tensor:
        """Full bidirectional attention, `(B, T, H)` -> `(B, T, H)`, or `(B, n, H)` at positions `at` (n,)."""
        if at is None:
            qkv = self.attn_qkv(x).unflatten(2, (3, self.heads, -1))
            q, k = rotate(qkv[:, :, :2], cos.to(qkv.dtype), sin.to(qkv.dtype)).transpose(1, 3).unbind(2)
            v = qkv[:, :, 2].transpose(1, 2)
        else:
            weight, width = self.attn_qkv.weight, x.shape[2]
            cos, sin = cos[:, 0].to(x.dtype), sin[:, 0].to(x.dtype)
            q = rotate(F.linear(x[:, at], weight[:width]).unflatten(2, (self.heads, -1)), cos[at], sin[at])
            k, v = F.linear(x, weight[width:]).unflatten(2, (2, self.heads, -1)).unbind(2)
            q, k, v = (part.transpose(1, 2) for part in (q, rotate(k, cos, sin), v))
        mixed = attention(q, k, v)
        return self.attn_out(mixed.transpose(1, 2).flatten(2))

    def forward(self, x: Tensor, modulation: Tensor, cos: Tensor, sin: Tensor, at: Tensor | None = None) -> Tensor:
        """x `(B, T, H)`, modulation `(6, H)` or `(6, B, 1, H)` -> `(B, T, H)`, or `(B, n, H)` at positions `at`."""
        shift1, scale1, gate1, shift2, scale2, gate2 = modulation.unbind(0)
        change = self.attention(modulated_norm(x, self.norm1, shift1, scale1), cos, sin, at)
        x = torch.addcmul(x if at is None else x[:, at], gate1, F.dropout(change, self.dropout, self.training))
        change = self.mlp(modulated_norm(x, self.norm2, shift2, scale2))
        return torch.addcmul(x, gate2, F.dropout(change, self.dropout, self.training))


class OutputLayer(nn.Module):
    """Final modulated norm (part of the body) and the vocabulary's linear map (the head)."""

    def __init__(self, width: int, states: int, cond_dim: int) -> None:
        super().__init__()
        self.norm_final = nn.LayerNorm(width, bias=False)
        self.linear = nn.Linear(width, states)
        self.adaLN_modulation = nn.Linear(cond_dim, 2 * width)


class DiT(ConditionedTransformer):
    """Transformer over tokens 0..S, where S is the mask; `body` and `head` as in docs/architecture.md.

    Models of the uniform process have no `mask`. Published masked models have `time_conditioning=False`: σ = 0 at any
    time.
    """

    def __init__(
        self,
        symbols: int,
        length: int,
        width: int,
        depth: int,
        heads: int,
        cond_dim: int,
        dropout: float = 0.0,
        time_conditioning: bool = False,
        labels: int | None = None,
        mask: bool = True,
        latent: LatentConfig | Mapping[str, Any] | None = None,
    ) -> None:
        super().__init__()
        if width % (2 * heads):
            raise UserError(f"width {width} must be a multiple of {2 * heads} (2 × heads).", "Choose another.")
        if labels:
            raise UserError("The DiT takes no labels.", "Use the network type maskgit, or labels: null.")
        self.symbols, self.length, self.width, self.depth = symbols, length, width, depth
        self.time_conditioning, self.checkpointing = time_conditioning, False
        self.vocab_embed = VocabEmbed(symbols + mask, width)
        self.sigma_map = SigmaMap(cond_dim)
        self.rotary_emb = Rotary(width // heads)
        self.blocks = nn.ModuleList(Block(width, heads, cond_dim, dropout) for _ in range(depth))
        self.output_layer = OutputLayer(width, symbols + mask, cond_dim)
        self._init_plain()
        self.add_latent(latent, depth, 6)

    def _init_plain(self) -> None:
        """Start as an unmodulated pre-norm transformer: gates 1, shifts and scales 0."""
        for module in self.modules():
            if isinstance(module, nn.Linear):
                nn.init.normal_(module.weight, std=0.02)
                if module.bias is not None:
                    nn.init.zeros_(module.bias)
        nn.init.zeros_(self.output_layer.adaLN_modulation.weight)
        for block in self.stack:
            nn.init.zeros_(block.adaLN_modulation.weight)
            parts = block.adaLN_modulation.bias.detach().view(6, -1)
            parts[2], parts[5] = 1.0, 1.0

    @property
    def stack(self) -> list[Block]:
        """The blocks with their type (a ModuleList is typed as modules)."""
        return cast("list[Block]", list(self.blocks))

    def modulations(self, t: Tensor, film: Tensor | None) -> tuple[list[Tensor], Tensor]:
        """Per block `(6, H)`, shared by all samples, or `(6, B, 1, H)`; the same for the output with 2."""
        if self.time_conditioning:
            t = t.to(precise(t.dtype))
            sigma = -torch.log1p((LOG_LINEAR_EPS - 1) * t)
        else:
            sigma = torch.zeros(1, device=t.device)
        cond = F.silu(self.sigma_map(sigma))

        def vectors(layer: nn.Linear) -> Tensor:
            rows = layer(cond).unflatten(1, (-1, self.width))
            return rows.transpose(0, 1)[:, :, None] if self.time_conditioning else rows[0]

        final = vectors(self.output_layer.adaLN_modulation)
        blocks = [vectors(block.adaLN_modulation) for block in self.stack]
        if film is not None:
            each = film.permute(1, 2, 0, 3).unsqueeze(3)  # (depth, 6, B, 1, H)
            blocks = [each[i] + (own if self.time_conditioning else own[:, None, None]) for i, own in enumerate(blocks)]
        return blocks, final

    def body(
        self, x: Tensor, t: Tensor, label: Tensor | None = None, lam: Tensor | None = None, at: Tensor | None = None
    ) -> Tensor:
        """Tokens `(B, D)` -> input of the final linear map `(B, D, H)`; D may differ from `length`.

        With `at` (n,) the last block has queries at those positions only, and the result is `(B, n, H)`: the same
        values up to rounding.
        """
        with without_autocast(x.device):
            token, film = self.latent_vectors(lam)
            blocks, final = self.modulations(t, film)
            hidden = self.add_field(self.vocab_embed(x), lam)
        if token is not None:
            hidden = torch.cat((hidden, token), dim=1)
        cos, sin = self.rotary_emb(x.shape[1], hidden.shape[1] - x.shape[1], precise(hidden.dtype))
        for i, (block, modulation) in enumerate(zip(self.stack, blocks), 1):
            where = at if i == self.depth else None
            hidden = checkpointed(self.checkpointing, block, hidden, modulation, cos, sin, where)
        rows = hidden[:, : x.shape[1]] if at is None else hidden
        return modulated_norm(rows, self.output_layer.norm_final, *final.unbind(0))

    @property
    def linear_head(self) -> tuple[Tensor, Tensor]:
        """The head is h·Wᵀ + b over the first S rows of W `(S + 1, H)` and b `(S + 1,)`."""
        return self.output_layer.linear.weight, self.output_layer.linear.bias

    def head(self, h: Tensor, d: Tensor | None = None) -> Tensor:
        """Hidden rows `(n, H)` at any positions -> logits over the real symbols `(n, S)`."""
        linear = self.output_layer.linear
        if torch.is_autocast_enabled(h.device.type):
            # autocast keeps its copy of a whole weight, but converts a slice anew in every call
            return linear(h)[:, : self.symbols]
        # Slicing the weights and not the logits leaves the result contiguous and nothing copied.
        return F.linear(h.to(linear.weight.dtype), linear.weight[: self.symbols], linear.bias[: self.symbols])
