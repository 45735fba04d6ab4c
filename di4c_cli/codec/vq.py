"""VQ codes to images through the VQGAN's decoder."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
import torch
from safetensors.torch import load_file
from torch import Tensor

from di4c_cli.codec.base import Codec
from di4c_cli.errors import UserError
from di4c_cli.network.vqgan import VQGAN

TILE = 16
"""Images per decoder call, always padded to it: convolutions change in the last bit with the batch."""


class Vq(Codec):
    """A VQGAN as safetensors, `settings` its constructor arguments."""

    kind = "vq"

    def __init__(self, path: Path, settings: dict[str, Any]) -> None:
        self.vqgan = VQGAN(**{key: value for key, value in settings.items() if key != "type"})
        try:
            tensors = {name: tensor.float() for name, tensor in load_file(path).items()}
            self.vqgan.load_state_dict(tensors)
        except (RuntimeError, ValueError, OSError) as error:
            first = str(error).splitlines()[0]
            raise UserError(f"The VQGAN {path.name} cannot be read: {first}.", "Replace the file.") from error
        self.vqgan.eval().requires_grad_(False)

    @torch.no_grad()
    def decode(self, x: Tensor) -> np.ndarray:
        """`(n, D)` codes -> uint8 `(n, H, W)` or `(n, H, W, 3)`."""
        device = next(self.vqgan.parameters()).device
        parts = []
        for start in range(0, len(x), TILE):
            codes = x[start : start + TILE].to(device)
            filler = codes[:1].expand(TILE - len(codes), -1)
            image = self.vqgan.decode(torch.cat([codes, filler]))[: len(codes)]
            parts.append(((image + 1) * 127.5).round().clamp(0, 255).byte().permute(0, 2, 3, 1).cpu())
        out = torch.cat(parts).numpy() if parts else np.zeros((0, 1, 1, 1), np.uint8)
        return out[..., 0] if out.shape[-1] == 1 else out

    @torch.no_grad()
    def encode_images(self, images: Tensor) -> Tensor:
        """Images `(n, C, H, W)` in [-1, 1] -> codes `(n, D)`."""
        device = next(self.vqgan.parameters()).device
        codes: Tensor = self.vqgan.encode(images.to(device)).cpu()
        return codes
