"""The tauLDR U-Net for pixels: each gets the mean and log-scale of a truncated logistic over S intensities.

A student carries λ beside the time embedding. Parameter names and their order are those of the published
checkpoints (without the `net.` prefix).
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from functools import partial
from typing import Any

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from di4c_cli.errors import UserError
from di4c_cli.latent.config import LatentConfig
from di4c_cli.latent.injection import LatentField
from di4c_cli.latent.prior import LearnedPrior
from di4c_cli.network.unet_blocks import (
    Downsample,
    ResidualBlock,
    SpatialAttention,
    Upsample,
    conv3x3,
    dense,
    group_norm,
    truncated_logistic,
)
from di4c_cli.numerics import checkpointed, precise, reset_linear, sinusoid, without_autocast


class UNet(nn.Module):
    """p(x0 | xt; λ) for ordinal pixels of shape (C, H, W), flattened to D = C·H·W in that order."""

    width = 2

    def __init__(
        self,
        symbols: int,
        shape: Sequence[int],
        channels: int,
        multipliers: Sequence[int],
        blocks: int,
        attention: int | Sequence[int],
        time_dim: int,
        time_scale: float = 1000.0,
        dropout: float = 0.0,
        labels: int | None = None,
        latent: LatentConfig | Mapping[str, Any] | None = None,
    ) -> None:
        super().__init__()
        self.symbols, self.shape = symbols, (shape[0], shape[1], shape[2])
        self.length = shape[0] * shape[1] * shape[2]
        self.channels, self.multipliers, self.blocks = channels, list(multipliers), blocks
        self.attention = [attention] if isinstance(attention, int) else list(attention)
        self.time_dim, self.time_scale, self.dropout, self.labels = time_dim, time_scale, dropout, labels
        self.latent = self._parse_latent(latent)
        self.checkpointing = False
        factor = 2 ** (len(self.multipliers) - 1)
        if self.shape[1] % factor or self.shape[2] % factor:  # or the skip connections do not fit
            raise ValueError(f"image sides {self.shape[1:]} must be multiples of {factor}")
        if self.time_dim % 2 or self.time_dim < 4:
            raise ValueError(f"time_dim {self.time_dim} must be even, half sines and half cosines, and at least 4")
        self._build()

    @staticmethod
    def _parse_latent(latent: LatentConfig | Mapping[str, Any] | None) -> LatentConfig | None:
        """λ beside the time, each component through sinusoids by default, as published."""
        if latent is None:
            return None
        given = latent.model_dump() if isinstance(latent, LatentConfig) else dict(latent)
        given = {key: value for key, value in given.items() if value is not None}
        config = LatentConfig.model_validate({"inject": "film", "features": "sinusoid"} | given)
        if config.inject in ("token", "local"):
            raise UserError(f"The U-Net takes λ beside the time, not as '{config.inject}'.", "Use 'film' or 'field'.")
        return config

    def _build(self) -> None:
        """Create the parameters in the published order."""
        wide = 4 * self.time_dim
        self.temb_modules = nn.ModuleList([dense(self.time_dim, wide), dense(wide, wide)])
        if self.labels is not None:
            self.label_emb = nn.Embedding(self.labels + 1, wide)
            nn.init.zeros_(self.label_emb.weight)
        features = self.time_dim
        if self.latent is not None:
            features += self.latent.dim * (self.time_dim if self.latent.presentation == "sinusoid" else 1)
            self.lemb_modules = nn.ModuleList([dense(self.time_dim, wide), dense(wide, wide)])
            self.hlemb_modules = nn.ModuleList([dense(self.time_dim, wide), dense(wide, wide)])
            self.tlam_mix = dense(features, self.time_dim)
        self.input_conv = conv3x3(self.shape[0], self.channels)
        self.downsampling_modules, skips = self._down()
        deepest = skips[-1]
        if self.latent is not None:
            self.h_t_lam_mix = dense(features + deepest, self.time_dim)
        self.middle_modules = nn.ModuleList(
            [self._block(deepest, deepest), SpatialAttention(deepest), self._block(deepest, deepest)]
        )
        self.upsampling_modules = self._up(skips)
        narrow = self.channels * self.multipliers[0]
        self.output_modules = nn.ModuleList([group_norm(narrow), conv3x3(narrow, 2 * self.shape[0], zero=True)])
        if self.latent is None:
            return
        if self.latent.inject == "field":
            self.latent_field = LatentField(self.channels, self.shape[1] * self.shape[2], self.latent)
        if self.latent.prior == "learned":
            sizes = self.latent.prior_width, self.latent.dim, 1
            self.latent_prior = LearnedPrior(*sizes, self.symbols, self.length, self.labels)
        self.init_latent("default")

    def _block(self, inputs: int, outputs: int) -> ResidualBlock:
        return ResidualBlock(inputs, outputs, 4 * self.time_dim, self.dropout, self.latent is not None)

    def _down(self) -> tuple[nn.ModuleList, list[int]]:
        """The descending path and the channel counts it leaves on the stack."""
        modules: list[nn.Module] = []
        skips = [self.channels]
        for scale, multiplier in enumerate(self.multipliers):
            for _ in range(self.blocks):
                modules.append(self._block(skips[-1], self.channels * multiplier))
                skips.append(self.channels * multiplier)
                if scale in self.attention:
                    modules.append(SpatialAttention(skips[-1]))
            if scale < len(self.multipliers) - 1:
                modules.append(Downsample(skips[-1]))
                skips.append(skips[-1])
        return nn.ModuleList(modules), skips

    def _up(self, skips: list[int]) -> nn.ModuleList:
        """The ascending path, one block more per scale, each taking one activation off the stack."""
        modules: list[nn.Module] = []
        stack, current = list(skips), skips[-1]
        for scale in reversed(range(len(self.multipliers))):
            for _ in range(self.blocks + 1):
                modules.append(self._block(current + stack.pop(), self.channels * self.multipliers[scale]))
                current = self.channels * self.multipliers[scale]
                if scale in self.attention:
                    modules.append(SpatialAttention(current))
            if scale > 0:
                modules.append(Upsample(current))
        return nn.ModuleList(modules)

    def init_latent(self, kind: str | float = "default", generator: torch.Generator | None = None) -> None:
        """Draw the λ layers anew.

        "default" (the paper) and "zero" leave `dense1` at zero, so a student starts as its teacher; a number
        is the standard deviation of the `dense1` weights, which lets λ matter from the first step. All biases
        start at zero (section F.1.3).
        """
        if self.latent is None:
            raise ValueError("a network without λ conditioning has no λ weights to initialise")
        std = 0.0 if kind in ("default", "zero") else float(kind)
        for layer in (*self.lemb_modules, *self.hlemb_modules, self.tlam_mix, self.h_t_lam_mix):
            assert isinstance(layer, nn.Linear)
            reset_linear(layer, None, generator)
            nn.init.zeros_(layer.bias)
        for module in self.modules():
            if isinstance(module, ResidualBlock) and module.dense1 is not None:
                reset_linear(module.dense1, std, generator)
        if self.latent.inject == "field":
            self.latent_field.init_latent(kind, generator)
        if self.latent.prior == "learned":
            self.latent_prior.init_latent(generator)

    def time_features(self, t: Tensor) -> Tensor:
        """t (B,): raw sinusoid features (B, time_dim) in the weights' dtype."""
        scaled = t.to(precise(t.dtype)) * self.time_scale
        return sinusoid(scaled, self.time_dim).to(self.input_conv.weight.dtype)

    def time_embedding(self, feature: Tensor, label: Tensor | None) -> Tensor:
        """Time feature (B, time_dim), label (B,) or None: (B, 4·time_dim); labels need a label table."""
        with without_autocast(feature.device):
            time = self.temb_modules[1](F.silu(self.temb_modules[0](feature)))
        if self.labels is None:
            return time
        if label is None:
            label = torch.full((len(feature),), -1, device=feature.device)
        return time + self.label_emb(torch.where(label < 0, self.labels, label))

    def latent_features(self, lam: Tensor | None, feature: Tensor) -> Tensor | None:
        """Features of λ, (B,) or (B, dim), followed by the raw time feature (B, time_dim); None without λ."""
        if (lam is None) != (self.latent is None):
            raise ValueError("λ must be given to a mixture model, and only to a mixture model")
        if lam is None or self.latent is None:
            return None
        lam = lam.reshape(len(feature), self.latent.dim).to(precise(lam.dtype))
        if self.latent.presentation == "sinusoid":
            lam = sinusoid(lam * self.time_scale, self.time_dim).flatten(1)
        elif self.latent.distribution == "uniform":
            lam = 2.0 * lam - 1.0  # centred, so that the first layer sees signs and not an offset
        return torch.cat([lam.to(feature.dtype), feature], dim=1)

    def latent_embedding(self, features: Tensor, deepest: Tensor | None = None) -> Tensor:
        """λ vector (B, 4·time_dim): of the descending path, or with `deepest` (B, C, h, w) of the rest."""
        layers, mix = self.lemb_modules, self.tlam_mix
        if deepest is not None:
            layers, mix = self.hlemb_modules, self.h_t_lam_mix
            features = torch.cat([features, deepest.mean(dim=(2, 3)).to(features.dtype)], dim=1)
        with without_autocast(features.device):
            return layers[1](F.silu(layers[0](F.silu(mix(features)))))

    def _path(self, h: Tensor, time: Tensor, features: Tensor | None, field: Tensor | None) -> Tensor:
        """Down, middle and up on the centred input (B, C, H, W): (B, channels, H, W)."""
        run = partial(checkpointed, self.checkpointing)
        lam = None if features is None else self.latent_embedding(features)
        stack = [self.input_conv(h)]
        if field is not None:
            stack[0] = stack[0] + field.transpose(1, 2).reshape_as(stack[0]).to(stack[0].dtype)
        for module in self.downsampling_modules:
            if isinstance(module, ResidualBlock):
                stack.append(run(module, stack[-1], time, lam))
            elif isinstance(module, SpatialAttention):
                stack[-1] = module(stack[-1])
            else:
                stack.append(module(stack[-1]))
        h = stack[-1]
        lam = None if features is None else self.latent_embedding(features, h)
        for module in self.middle_modules:
            h = run(module, h, time, lam) if isinstance(module, ResidualBlock) else module(h)
        for module in self.upsampling_modules:
            if isinstance(module, ResidualBlock):
                h = run(module, torch.cat([h, stack.pop()], dim=1), time, lam)
            else:
                h = module(h)
        return h

    def net_out(self, x: Tensor, t: Tensor, label: Tensor | None = None, lam: Tensor | None = None) -> Tensor:
        """x (B, D) long, t (B,): means in the first C, log-scales in the last C channels of (B, 2C, H, W)."""
        dtype = self.input_conv.weight.dtype
        # The means stay in at least float32: near ±1 half precision is coarser than a bin.
        pixels = x.reshape(-1, *self.shape).to(precise(dtype))
        centred = 2.0 * pixels / (self.symbols - 1) - 1.0
        feature = self.time_features(t)
        features = self.latent_features(lam, feature)
        spread = self.latent is not None and self.latent.inject == "field"
        field = self.latent_field(lam) if spread else None
        h = self._path(centred.to(dtype), self.time_embedding(feature, label), features, field)
        mean, log_scale = self.output_modules[1](F.silu(self.output_modules[0](h))).chunk(2, dim=1)
        return torch.cat([torch.tanh(centred + mean), log_scale], dim=1)

    def body(self, x: Tensor, t: Tensor, label: Tensor | None = None, lam: Tensor | None = None) -> Tensor:
        """x (B, D) long, t (B,), label (B,), lam (B,) or (B, dim): mean, log-scale per pixel (B, D, 2)."""
        return self.net_out(x, t, label, lam).reshape(len(x), 2, self.length).transpose(1, 2)

    def head(self, h: Tensor, d: Tensor | None = None) -> Tensor:
        """h (n, 2) at any positions: logits (n, S)."""
        return truncated_logistic(h[:, 0], h[:, 1], self.symbols)
