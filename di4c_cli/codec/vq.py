"""VQ codes to images through the VQGAN's decoder."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
import torch
from safetensors import SafetensorError
from safetensors.torch import load_file
from torch import Tensor

from di4c_cli.codec.base import Codec
from di4c_cli.errors import UserError
from di4c_cli.limits import CHECK_CONFIG, check_vqgan
from di4c_cli.network.vqgan import VQGAN
from di4c_cli.numerics import shapes_only, tiled

DECODED_PER_CALL, ENCODED_PER_CALL = 16, 4
"""Every call is padded to these numbers: the last bit of a convolution depends on the batch size. Samples are decoded
in large batches; images are encoded when a training batch needs them."""
LARGE_IMAGE = 128
"""On a CPU images of this side or more are passed one by one: the padding would cost as much as real images."""


class Vq(Codec):
    """A VQGAN as safetensors or as tensors, `settings` its constructor arguments."""

    kind = "vq"

    def __init__(self, source: Path | dict[str, Tensor], settings: Any) -> None:
        self.vqgan = assemble(source, settings)

    def check_fits(self, length: int, symbols: int) -> None:
        height, width = self.vqgan.grid
        if height * width != length or self.vqgan.codes < symbols:
            found = f"{height}x{width} positions and {self.vqgan.codes} codes"
            raise UserError(f"The VQGAN has {found}, the model {length} and {symbols}.", CHECK_CONFIG)

    def to(self, device: torch.device | str) -> Vq:
        """The same codec, its VQGAN on `device`."""
        self.vqgan.to(device)
        return self

    @torch.no_grad()
    def decode(self, x: Tensor) -> np.ndarray:
        """`(n, D)` codes -> uint8 `(n, H, W)` or `(n, H, W, 3)`."""
        if not len(x):
            return np.zeros((0, 1, 1), np.uint8)
        device = next(self.vqgan.parameters()).device

        def pixels(codes: Tensor) -> Tensor:
            image = self.vqgan.decode(codes.to(device))
            return ((image + 1) * 127.5).round().clamp(0, 255).byte().permute(0, 2, 3, 1).cpu()

        out: np.ndarray = tiled(pixels, self._per_call(device, DECODED_PER_CALL), x).numpy()
        return out[..., 0] if out.shape[-1] == 1 else out

    @torch.no_grad()
    def encode_images(self, images: Tensor) -> Tensor:
        """Images `(n, C, H, W)` in [-1, 1] -> codes `(n, D)`."""
        device = next(self.vqgan.parameters()).device
        return tiled(self.vqgan.encode, self._per_call(device, ENCODED_PER_CALL), images.to(device)).cpu()

    def _per_call(self, device: torch.device, images: int) -> int:
        return 1 if device.type == "cpu" and self.vqgan.resolution >= LARGE_IMAGE else images


def build_vqgan_on_meta(settings: Any) -> VQGAN:
    """A VQGAN on the meta device, from settings that may be untrusted."""
    if not isinstance(settings, dict):
        raise UserError("The VQGAN's settings are missing.", CHECK_CONFIG)
    check_vqgan(settings)
    try:
        with shapes_only():
            return VQGAN(**{key: value for key, value in settings.items() if key != "type"})
    except (TypeError, ValueError, RuntimeError, ArithmeticError, LookupError) as error:
        raise UserError(f"The VQGAN's settings are impossible: {error}.", CHECK_CONFIG) from error


def assemble(source: Path | dict[str, Tensor], settings: Any) -> VQGAN:
    """The VQGAN of `settings` with its weights, in evaluation mode."""
    vqgan = build_vqgan_on_meta(settings)
    name = source.name if isinstance(source, Path) else "VQGAN"
    try:
        stored = load_file(source) if isinstance(source, Path) else source
        # copied: torch aligns its own memory, and alignment can change the last bit of a convolution
        tensors = {key: tensor.to(torch.float32, copy=True) for key, tensor in stored.items()}
        if not all(bool(torch.isfinite(tensor).all()) for tensor in tensors.values()):
            raise ValueError("it holds NaN or infinity")
        vqgan.load_state_dict(tensors, assign=True)
    except (RuntimeError, ValueError, OSError, SafetensorError, AttributeError, TypeError) as error:
        first = str(error).splitlines()[0]
        raise UserError(f"The VQGAN {name} cannot be read: {first}.", "Replace the file.") from error
    return vqgan.eval().requires_grad_(False)
