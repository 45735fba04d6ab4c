"""Samples under way, to be looked at: text with holes in a terminal, images as animation and strip."""

from __future__ import annotations

import io
from collections.abc import Callable
from pathlib import Path
from typing import TYPE_CHECKING

import numpy as np
from PIL import Image

from di4c_cli import files
from di4c_cli.codec.grid import image_grid

if TYPE_CHECKING:
    from torch import Tensor

    from di4c_cli.codec import Codec

HOLE = "░"
GREY = 160
"""Masked positions of an image."""


class Film:
    """Remembers every step of the first `most` samples; it is a `watch` for the sampler."""

    def __init__(self, most: int, then: Callable[[int, float, Tensor], None] | None = None) -> None:
        self.most, self.then = most, then
        self.steps: list[tuple[float, Tensor]] = []

    def __call__(self, left: int, t: float, x: Tensor) -> None:
        self.steps.append((t, x[: self.most].cpu()))
        if self.then is not None:
            self.then(left, t, x)


def holes(codec: Codec, x: Tensor) -> list[str]:
    """Texts under way; a masked token shows as a small block."""
    return [text.replace("[MASK]", HOLE) for text in codec.decode(x)]


def pictures(codec: Codec, x: Tensor, symbols: int) -> np.ndarray:
    """uint8 `(n, H, W, 3)` of samples under way; masked positions are grey."""
    images = codec.decode(x.clamp_max(symbols - 1))
    if images.ndim == 3:
        images = np.repeat(images[..., None], 3, axis=-1)
    height, width = images.shape[1:3]
    hidden = (x >= symbols).numpy()
    length = hidden.shape[1]
    # pixels channel by channel, or one code for a square patch
    down = height if length % (height * width) == 0 else round((length * height / width) ** 0.5)
    across = down * width // height
    patches = np.max(hidden.reshape(len(x), -1, down, across), axis=1)
    patches = patches.repeat(height // down, axis=1).repeat(width // across, axis=2)
    return np.where(patches[..., None], GREY, images).astype(np.uint8)


def save_film(film: Film, codec: Codec, symbols: int, path: Path, seconds: float = 3.0) -> list[Path]:
    """An animated GIF beside `path` and a PNG strip: one row per step, one column per sample."""
    shots = [pictures(codec, x, symbols) for _, x in film.steps]
    sheets = [image_grid(shot) for shot in shots]
    gif, strip = path.with_suffix(".gif"), path.with_name(f"{path.stem}-steps.png")
    each = max(60, int(1000 * seconds / len(sheets)))
    buffer = io.BytesIO()
    times = [each] * (len(sheets) - 1) + [1500]
    sheets[0].save(buffer, "GIF", save_all=True, append_images=sheets[1:], duration=times, loop=0)
    files.write_bytes(gif, buffer.getvalue())
    columns = min(8, len(shots[0]))
    buffer = io.BytesIO()
    table: Image.Image = image_grid(np.concatenate([shot[:columns] for shot in shots]), columns)
    table.save(buffer, "PNG")
    files.write_bytes(strip, buffer.getvalue())
    return [gif, strip]
