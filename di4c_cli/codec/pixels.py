"""Grey levels to images."""

from __future__ import annotations

import numpy as np
from torch import Tensor

from di4c_cli.codec.base import Codec


class Pixels(Codec):
    """`shape` (C, H, W), `levels` S: level k is grey 255 k / (S - 1)."""

    kind = "pixels"

    def __init__(self, shape: tuple[int, ...], levels: int) -> None:
        self.shape, self.levels = shape, levels

    def decode(self, x: Tensor) -> np.ndarray:
        """`(n, D)` -> uint8 `(n, H, W)` for one channel, `(n, H, W, C)` otherwise."""
        images = x.reshape(-1, *self.shape).permute(0, 2, 3, 1).double()
        out = (images * 255 / (self.levels - 1)).round().clamp(0, 255).byte().cpu().numpy()
        return out[..., 0] if self.shape[0] == 1 else out
