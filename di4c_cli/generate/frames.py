"""Unfinished samples to look at: text with masked tokens in a terminal, images as animation and strip."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING

import numpy as np

from di4c_cli import files
from di4c_cli.codec.grid import image_grid, save_grid

if TYPE_CHECKING:
    from torch import Tensor

    from di4c_cli.codec import Codec

MASK_BLOCK = "░"
MASK_GREY = 160
"""Grey level of masked positions of an image."""


class Film:
    """Records every step of the first `most` samples of the first batch; an `on_step` for the sampling loop."""

    def __init__(self, most: int) -> None:
        self.most, self.finished = most, False
        self.steps: list[tuple[float, Tensor]] = []

    def __call__(self, left: int, t: float, x: Tensor) -> None:
        if not self.finished:
            self.steps.append((t, x[: self.most].cpu()))
        self.finished |= left == 0


def masked_texts(codec: Codec, x: Tensor) -> list[str]:
    """Unfinished texts; a masked token shows as a small block."""
    return [text.replace("[MASK]", MASK_BLOCK) for text in codec.decode(x)]


def pictures(codec: Codec, x: Tensor, symbols: int) -> np.ndarray:
    """uint8 `(n, H, W, 3)` of unfinished samples; masked positions are grey."""
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
    return np.where(patches[..., None], MASK_GREY, images).astype(np.uint8)


def save_film(film: Film, codec: Codec, symbols: int, path: Path, seconds: float = 3.0) -> list[Path]:
    """An animated GIF beside `path` and a PNG strip: one row per step, one column per sample."""
    shots = [pictures(codec, x, symbols) for _, x in film.steps]
    sheets = [image_grid(shot) for shot in shots]
    gif, strip = path.with_suffix(".gif"), path.with_name(f"{path.stem}-steps.png")
    each = max(60, int(1000 * seconds / len(sheets)))
    times = [each] * (len(sheets) - 1) + [1500]
    film_options = {"save_all": True, "append_images": sheets[1:], "duration": times, "loop": 0}
    files.write_with(gif, lambda file: sheets[0].save(file, "GIF", **film_options))
    columns = min(8, len(shots[0]))
    save_grid(np.concatenate([shot[:columns] for shot in shots]), strip, columns)
    return [gif, strip]
