"""Parts of the pixel U-Net: residual block, attention, resampling, output distribution.

Attribute names follow the published tauLDR checkpoints, and so does the order in which parameters are
created: the EMA of those checkpoints is an unnamed list in parameter order.
"""

from __future__ import annotations

import math

import torch
import torch.nn.functional as F
from torch import Tensor, nn

# exp(20) makes every bin of a 16-bit range one-hot; beyond it the exponential only brings overflow.
MAX_LOG_STEEPNESS = 20.0
TAIL_PROBABILITY = 1e-6


def attend(query: Tensor, key: Tensor, value: Tensor) -> Tensor:
    """Single-head attention over all pixels, scale 1/sqrt(C); all (B, C, H, W)."""
    # fused kernels need the channels last
    q, k, v = (a.flatten(2).transpose(1, 2).contiguous().unsqueeze(1) for a in (query, key, value))
    mixed = F.scaled_dot_product_attention(q, k, v)
    return mixed.squeeze(1).transpose(1, 2).reshape(value.shape)


def group_norm(channels: int) -> nn.GroupNorm:
    """Groups of at least four channels, at most 32 groups."""
    return nn.GroupNorm(min(channels // 4, 32), channels, eps=1e-6)


def conv3x3(inputs: int, outputs: int, zero: bool = False) -> nn.Conv2d:
    """A size-preserving 3x3 convolution; `zero` sets its weights to zero, for the last layer of a residual branch."""
    conv = nn.Conv2d(inputs, outputs, 3, padding=1)
    reset(conv, 0.0 if zero else 1.0)
    return conv


def dense(inputs: int, outputs: int) -> nn.Linear:
    """A linear layer with the initialisation of the other layers here."""
    layer = nn.Linear(inputs, outputs)
    reset(layer)
    return layer


def reset(layer: nn.Conv2d | nn.Linear, gain: float = 1.0) -> None:
    """Fan-average uniform weights times `gain`, zero bias."""
    nn.init.xavier_uniform_(layer.weight, gain=gain)
    if layer.bias is not None:
        nn.init.zeros_(layer.bias)


class NIN(nn.Module):
    """A 1x1 convolution whose matrix is stored as (in, out)."""

    def __init__(self, inputs: int, outputs: int, gain: float = 1.0) -> None:
        super().__init__()
        self.W = nn.Parameter(nn.init.xavier_uniform_(torch.empty(inputs, outputs), gain=gain))
        self.b = nn.Parameter(torch.zeros(outputs))

    def forward(self, h: Tensor) -> Tensor:
        """(B, in, H, W) to (B, out, H, W)."""
        return F.conv2d(h, self.W.t()[:, :, None, None], self.b)


class SpatialAttention(nn.Module):
    """Self-attention over pixels; the residual sum is divided by sqrt(2) to keep the variance."""

    def __init__(self, channels: int) -> None:
        super().__init__()
        self.GroupNorm_0 = group_norm(channels)
        self.NIN_0 = NIN(channels, channels)
        self.NIN_1 = NIN(channels, channels)
        self.NIN_2 = NIN(channels, channels)
        self.NIN_3 = NIN(channels, channels, gain=0.0)

    def forward(self, h: Tensor) -> Tensor:
        """(B, C, H, W) to the same shape."""
        normed = self.GroupNorm_0(h)
        mixed = attend(self.NIN_0(normed), self.NIN_1(normed), self.NIN_2(normed))
        return (h + self.NIN_3(mixed)) / math.sqrt(2.0)


class ResidualBlock(nn.Module):
    """Two convolutions with the time vector, and in a student the λ vector, added per channel in between."""

    def __init__(self, inputs: int, outputs: int, embedding: int, dropout: float, latent: bool) -> None:
        super().__init__()
        self.groupnorm0 = group_norm(inputs)
        self.conv0 = conv3x3(inputs, outputs)
        self.dense0 = dense(embedding, outputs)
        self.dense1 = dense(embedding, outputs) if latent else None
        self.groupnorm1 = group_norm(outputs)
        self.dropout0 = nn.Dropout(dropout)
        self.conv1 = conv3x3(outputs, outputs, zero=True)
        self.nin = NIN(inputs, outputs) if inputs != outputs else None

    def forward(self, h: Tensor, time: Tensor, lam: Tensor | None) -> Tensor:
        """h (B, in, H, W), time and lam (B, E): (B, out, H, W)."""
        inner = self.conv0(F.silu(self.groupnorm0(h)))
        shift = self.dense0(F.silu(time))
        if self.dense1 is not None and lam is not None:
            shift = shift + self.dense1(F.silu(lam))
        inner = F.silu(self.groupnorm1(inner + shift[:, :, None, None]))
        inner = self.conv1(self.dropout0(inner))
        shortcut = h if self.nin is None else self.nin(h)
        return (shortcut + inner) / math.sqrt(2.0)


class Downsample(nn.Module):
    """Halves the sides. Zero padding at the right and bottom only, as published."""

    def __init__(self, channels: int) -> None:
        super().__init__()
        self.conv = nn.Conv2d(channels, channels, 3, stride=2)
        reset(self.conv)

    def forward(self, h: Tensor) -> Tensor:
        """(B, C, H, W) to (B, C, H//2, W//2)."""
        return self.conv(F.pad(h, (0, 1, 0, 1)))


class Upsample(nn.Module):
    """Doubles the sides: nearest neighbour, then a convolution."""

    def __init__(self, channels: int) -> None:
        super().__init__()
        self.conv = conv3x3(channels, channels)

    def forward(self, h: Tensor) -> Tensor:
        """(B, C, H, W) to (B, C, 2H, 2W)."""
        return self.conv(F.interpolate(h, scale_factor=2.0, mode="nearest"))


def truncated_logistic(mu: Tensor, log_scale: Tensor, symbols: int) -> Tensor:
    """Logits (n, S) of S equal bins on [-1, 1] under a logistic distribution; mu and log_scale (n,).

    Published: a + log(1 - exp(b - a) + 1e-6), with a, b the log-sigmoids at a bin's upper, lower edge u, v.
    Here 1 - exp(b - a) is written as sigmoid(-v)(1 - exp(v - u)), the same number without cancellation.
    """
    if mu.dtype not in (torch.float32, torch.float64):
        mu, log_scale = mu.float(), log_scale.float()
    steepness = torch.exp((2.0 - log_scale).clamp(max=MAX_LOG_STEEPNESS))[:, None]
    edge = torch.linspace(-1.0, 1.0, symbols + 1, dtype=mu.dtype, device=mu.device)
    distance = (edge - mu[:, None]) * steepness
    inside = -torch.expm1(-steepness * (2.0 / symbols))
    return F.logsigmoid(distance[:, 1:]) + torch.log(torch.sigmoid(-distance[:, :-1]) * inside + TAIL_PROBABILITY)
