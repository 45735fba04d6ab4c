"""Image grids as PNG files."""

from __future__ import annotations

import math
from pathlib import Path

import numpy as np
from PIL import Image

from di4c_cli import files


def image_grid(images: np.ndarray, columns: int | None = None, scale: int | None = None) -> Image.Image:
    """uint8 `(n, H, W)` or `(n, H, W, 3)` as one picture, enlarged without smoothing."""
    if images.ndim == 3:
        images = np.repeat(images[..., None], 3, axis=-1)
    count, height, width, _ = images.shape
    columns = columns or max(1, math.ceil(math.sqrt(count)))
    rows = max(1, math.ceil(count / columns))
    scale = scale or max(1, round(48 / max(height, width)))
    big, pad = images.repeat(scale, axis=1).repeat(scale, axis=2), 2
    height, width = height * scale, width * scale
    sheet = np.full((rows * (height + pad) + pad, columns * (width + pad) + pad, 3), 255, np.uint8)
    for i, tile in enumerate(big):
        top, left = pad + (i // columns) * (height + pad), pad + (i % columns) * (width + pad)
        sheet[top : top + height, left : left + width] = tile
    return Image.fromarray(sheet)


def save_grid(images: np.ndarray, path: Path, columns: int | None = None) -> None:
    """Write the grid as PNG, completely or not at all."""
    files.write_with(path, lambda file: image_grid(images, columns).save(file, format="PNG"))
