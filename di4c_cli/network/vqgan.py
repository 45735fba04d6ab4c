"""The VQGAN tokenizer: images to a grid of codebook indices and back.

Parameter names are those of the published (taming-transformers) checkpoints. This module holds no training losses.
"""

from __future__ import annotations

from collections.abc import Sequence

import torch.nn.functional as F
from torch import Tensor, nn

from di4c_cli.network.unet_blocks import Downsample, Upsample, attend


def norm(channels: int) -> nn.GroupNorm:
    """A norm of 32 groups for any width."""
    return nn.GroupNorm(32, channels, eps=1e-6)


class Residual(nn.Module):
    """Two convolutions and a shortcut, (B, in, H, W) to (B, out, H, W)."""

    def __init__(self, inputs: int, outputs: int) -> None:
        super().__init__()
        self.norm1 = norm(inputs)
        self.conv1 = nn.Conv2d(inputs, outputs, 3, padding=1)
        self.norm2 = norm(outputs)
        self.conv2 = nn.Conv2d(outputs, outputs, 3, padding=1)
        self.nin_shortcut = nn.Conv2d(inputs, outputs, 1) if inputs != outputs else None

    def forward(self, h: Tensor) -> Tensor:
        inner = self.conv1(F.silu(self.norm1(h)))
        inner = self.conv2(F.silu(self.norm2(inner)))
        return inner + (h if self.nin_shortcut is None else self.nin_shortcut(h))


class PixelAttention(nn.Module):
    """Self-attention over the positions of (B, C, H, W), added to its input."""

    def __init__(self, channels: int) -> None:
        super().__init__()
        self.norm = norm(channels)
        self.q = nn.Conv2d(channels, channels, 1)
        self.k = nn.Conv2d(channels, channels, 1)
        self.v = nn.Conv2d(channels, channels, 1)
        self.proj_out = nn.Conv2d(channels, channels, 1)

    def forward(self, h: Tensor) -> Tensor:
        normed = self.norm(h)
        return h + self.proj_out(attend(self.q(normed), self.k(normed), self.v(normed)))


class Level(nn.Module):
    """The residual blocks of one resolution, each followed by attention if it is on, then the resampling."""

    def __init__(self, inputs: int, outputs: int, blocks: int, attention: bool, resample: str) -> None:
        super().__init__()
        self.block = nn.ModuleList([Residual(inputs if i == 0 else outputs, outputs) for i in range(blocks)])
        self.attn = nn.ModuleList([PixelAttention(outputs) for _ in range(blocks if attention else 0)])
        self.downsample = Downsample(outputs) if resample == "down" else None
        self.upsample = Upsample(outputs) if resample == "up" else None

    def forward(self, h: Tensor) -> Tensor:
        for i, block in enumerate(self.block):
            h = block(h)
            if len(self.attn):
                h = self.attn[i](h)
        if self.downsample is not None:
            h = self.downsample(h)
        return h if self.upsample is None else self.upsample(h)


class Middle(nn.Module):
    """Block, attention, block at the coarsest resolution."""

    def __init__(self, channels: int) -> None:
        super().__init__()
        self.block_1 = Residual(channels, channels)
        self.attn_1 = PixelAttention(channels)
        self.block_2 = Residual(channels, channels)

    def forward(self, h: Tensor) -> Tensor:
        return self.block_2(self.attn_1(self.block_1(h)))


class VqganEncoder(nn.Module):
    """Image (B, C, H, W) to (B, z_channels, h, w); `attention[i]` says whether level i attends."""

    def __init__(
        self, inputs: int, widths: Sequence[int], first: int, blocks: int, attention: Sequence[bool], z: int
    ) -> None:
        super().__init__()
        self.conv_in = nn.Conv2d(inputs, first, 3, padding=1)
        self.down = nn.ModuleList()
        current = first
        for i, channels in enumerate(widths):
            resample = "down" if i < len(widths) - 1 else ""
            self.down.append(Level(current, channels, blocks, attention[i], resample))
            current = channels
        self.mid = Middle(current)
        self.norm_out = norm(current)
        self.conv_out = nn.Conv2d(current, z, 3, padding=1)

    def forward(self, image: Tensor) -> Tensor:
        h = self.conv_in(image)
        for level in self.down:
            h = level(h)
        return self.conv_out(F.silu(self.norm_out(self.mid(h))))


class VqganDecoder(nn.Module):
    """(B, z_channels, h, w) to an image (B, C, H, W). `up.0` is the finest level and comes last."""

    def __init__(self, outputs: int, widths: Sequence[int], blocks: int, attention: Sequence[bool], z: int) -> None:
        super().__init__()
        self.conv_in = nn.Conv2d(z, widths[-1], 3, padding=1)
        self.mid = Middle(widths[-1])
        self.up = nn.ModuleList()
        for i, channels in enumerate(widths):
            coarser = widths[min(i + 1, len(widths) - 1)]
            self.up.append(Level(coarser, channels, blocks + 1, attention[i], "up" if i > 0 else ""))
        self.norm_out = norm(widths[0])
        self.conv_out = nn.Conv2d(widths[0], outputs, 3, padding=1)

    def forward(self, z: Tensor) -> Tensor:
        h = self.mid(self.conv_in(z))
        for i in reversed(range(len(self.up))):
            h = self.up[i](h)
        return self.conv_out(F.silu(self.norm_out(h)))


class Codebook(nn.Module):
    """`codes` vectors of width `dim`; the small uniform initialisation keeps all of them in use."""

    def __init__(self, codes: int, dim: int) -> None:
        super().__init__()
        self.embedding = nn.Embedding(codes, dim)
        nn.init.uniform_(self.embedding.weight, -1.0 / codes, 1.0 / codes)

    def lookup(self, codes: Tensor, grid: tuple[int, int]) -> Tensor:
        """codes (B, h·w) long, row by row: vectors (B, E, h, w)."""
        return self.embedding(codes).transpose(1, 2).reshape(len(codes), -1, *grid)

    def forward(self, z: Tensor) -> tuple[Tensor, Tensor]:
        """z (B, E, h, w): the closest row at each place (B, E, h, w) and its index (B, h·w) long."""
        rows = z.flatten(2).transpose(1, 2)
        table = self.embedding.weight
        # |z|² is the same for all rows and cannot change the minimum
        codes = (table.square().sum(dim=1) - 2.0 * rows @ table.t()).argmin(dim=-1)
        return self.lookup(codes, (z.shape[2], z.shape[3])), codes


class VQGAN(nn.Module):
    """Convolutional encoder and decoder around a codebook; images are (B, C, H, W) in [-1, 1]."""

    def __init__(
        self,
        channels: int,
        multipliers: Sequence[int],
        blocks: int,
        attention_resolutions: Sequence[int],
        z_channels: int,
        embed_dim: int,
        codes: int,
        resolution: int,
        in_channels: int = 3,
        out_channels: int = 3,
    ) -> None:
        super().__init__()
        self.codes, self.resolution, self.in_channels = codes, resolution, in_channels
        widths = [channels * m for m in multipliers]
        factor = 2 ** (len(widths) - 1)
        if any(width % 32 for width in [channels, *widths]):
            raise ValueError(f"channel counts {widths} must be multiples of 32: the norms have 32 groups")
        if resolution % factor:
            raise ValueError(f"resolution {resolution} must be a multiple of {factor}")
        self.grid = (resolution // factor, resolution // factor)
        attention = [resolution // 2**i in attention_resolutions for i in range(len(widths))]
        self.encoder = VqganEncoder(in_channels, widths, channels, blocks, attention, z_channels)
        self.decoder = VqganDecoder(out_channels, widths, blocks, attention, z_channels)
        # Published name; as a module it is also the method `quantize(z) -> (vectors, codes)`.
        self.quantize = Codebook(codes, embed_dim)
        self.quant_conv = nn.Conv2d(z_channels, embed_dim, 1)
        self.post_quant_conv = nn.Conv2d(embed_dim, z_channels, 1)

    def pre_quant(self, image: Tensor) -> Tensor:
        """Image (B, C, H, W) to the vectors before quantisation (B, E, h, w)."""
        return self.quant_conv(self.encoder(image))

    def encode(self, image: Tensor) -> Tensor:
        """Image (B, C, H, W) in [-1, 1] to codes (B, h·w) long, row by row."""
        return self.quantize(self.pre_quant(image))[1]

    def decode(self, codes: Tensor) -> Tensor:
        """Codes (B, h·w) of the configured grid to an image (B, C, H, W), not clamped."""
        return self.decoder(self.post_quant_conv(self.quantize.lookup(codes, self.grid)))
