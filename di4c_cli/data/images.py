"""Images from folders and `.npz` files as grey levels or colours of the teacher's size."""

from __future__ import annotations

import zipfile
from pathlib import Path

import numpy as np
import torch
from PIL import Image, UnidentifiedImageError
from torch import Tensor

from di4c_cli.data.items import TensorItems
from di4c_cli.errors import UserError
from di4c_cli.student import physical_memory

SUFFIXES = (".png", ".jpg", ".jpeg", ".webp", ".bmp")
IMAGES = ("x", "images", "image", "codes", "arr_0")
LABELS = ("label", "labels", "y", "arr_1")


def quantise(pixels: np.ndarray, levels: int) -> np.ndarray:
    """0..255 to the nearest of `levels` grey levels, the inverse of how they are shown."""
    if levels == 256:
        return pixels
    kind = np.uint8 if levels < 256 else np.int32
    return np.rint(pixels.astype(np.float64) * (levels - 1) / 255).astype(kind)


def image_files(folder: Path) -> tuple[list[Path], list[int] | None, list[str]]:
    """Image files by name, their labels and the classes, which are the names of the sub-folders."""
    classes = sorted(
        entry.name for entry in folder.iterdir() if entry.is_dir() and not entry.name.startswith(".")
    )
    if not classes:
        return _inside(folder), None, []
    found = [(path, number) for number, name in enumerate(classes) for path in _inside(folder / name)]
    return [path for path, _ in found], [number for _, number in found], classes


def _inside(folder: Path) -> list[Path]:
    return sorted(path for path in folder.rglob("*") if path.suffix.lower() in SUFFIXES)


def open_image(path: Path, channels: int | None = None) -> Image.Image:
    """An image with one or three channels, without a number as many as it has; a damaged file is named."""
    try:
        with Image.open(path) as image:
            grey = image.mode == "L" if channels is None else channels == 1
            return image.convert("L" if grey else "RGB")
    except (UnidentifiedImageError, OSError, SyntaxError, ValueError, Image.DecompressionBombError) as error:
        raise UserError(f"{path} is not a readable image.", "Mend or remove it.") from error


class ImageFolder:
    """Images read when asked for; every one must have the teacher's size."""

    def __init__(self, folder: Path, shape: tuple[int, ...], levels: int) -> None:
        self.shape, self.levels, self.length = shape, levels, int(np.prod(shape))
        self.paths, self.labels, self.classes = image_files(folder)

    def __len__(self) -> int:
        return len(self.paths)

    def rows(self, index: list[int], mirror: Tensor | None = None) -> tuple[Tensor, Tensor | None]:
        x = torch.stack([self._read(self.paths[item]) for item in index])
        if mirror is not None:
            x = torch.where(mirror[:, None, None, None], x.flip(-1), x)
        label = None if self.labels is None else torch.tensor([self.labels[item] for item in index])
        return x.flatten(1).long(), label

    def _read(self, path: Path) -> Tensor:
        channels, height, width = self.shape
        image = open_image(path, channels)
        if image.size != (width, height):
            raise UserError(
                f"{path} is {image.width}x{image.height}, the teacher's images are {width}x{height}.",
                "Resize it or name other images.",
            )
        pixels = quantise(np.asarray(image, np.uint8), self.levels)
        return torch.from_numpy(pixels.copy()).view(height, width, channels).permute(2, 0, 1)

    def name(self, item: int) -> str:
        return str(self.paths[item])


def open_npz(path: Path, shape: tuple[int, ...] | None, length: int, levels: int) -> TensorItems:
    """`x` or `images` as `(N, H, W)`, `(N, H, W, C)` or `(N, D)`, and `label` or `labels` if there are any.

    Flattened samples and VQ codes are ids already; pictures are quantised to the teacher's levels.
    """
    check_unpacked(path, physical_memory())
    try:
        with np.load(path, allow_pickle=False) as file:
            found = {name: file[name] for name in file.files}
    except Exception as error:  # zipfile, numpy and zlib each have their own
        raise UserError(f"{path} is not a readable .npz file.", "Write it again.") from error
    x = next((found[name] for name in IMAGES if name in found), None)
    label = next((found[name] for name in LABELS if name in found), None)
    if x is None or x.dtype.kind not in "ui" or x.ndim < 2:
        raise UserError(f"{path} has no whole numbers under any of {', '.join(IMAGES)}.", "Rename the array.")
    if label is not None and label.dtype.kind not in "ui":
        raise UserError(f"The labels of {path} are not whole numbers.", "Number the classes from 0 on.")
    if label is not None and label.size != len(x):
        raise UserError(f"{path} has {len(x)} images and {label.size} labels.", "Write it again.")
    if x.ndim > 2:
        x = _pictures(x, path, shape, levels)
    ids = torch.from_numpy(x.reshape(len(x), -1).copy())
    labels = None if label is None else torch.from_numpy(label.astype(np.int64).reshape(-1))
    return TensorItems(ids, labels, shape if ids.shape[1] == length else None, str(path))


def check_unpacked(path: Path, memory: int) -> None:
    """Refuse a compressed file that claims to unpack to more than `memory` bytes, before any of it is read."""
    try:
        with zipfile.ZipFile(path) as archive:
            size = sum(record.file_size for record in archive.infolist())
    except (OSError, ValueError, zipfile.BadZipFile):
        return  # no archive: the reader says so
    if size > memory:
        raise UserError(
            f"{path} unpacks to {size / 2**30:.0f} GB, larger than this machine's memory.",
            "Name a folder of images instead.",
        )


def _pictures(x: np.ndarray, path: Path, shape: tuple[int, ...] | None, levels: int) -> np.ndarray:
    """(N, H, W[, C]) to (N, C, H, W) of the teacher's size."""
    x = x[..., None] if x.ndim == 3 else x
    if shape is None or x.ndim != 4 or (x.shape[3], x.shape[1], x.shape[2]) != tuple(shape):
        size = "x".join(map(str, x.shape[1:3])) if x.ndim == 4 else str(x.shape[1:])
        wanted = "no pictures" if shape is None else f"{shape[1]}x{shape[2]} with {shape[0]} channels"
        raise UserError(f"{path}, record 0 is {size}, the teacher takes {wanted}.", "Name other images.")
    if x.size and (x.min() < 0 or x.max() > 255):
        raise UserError(f"{path} holds pictures with values outside 0..255.", "Bring them to that range.")
    return quantise(x, levels).transpose(0, 3, 1, 2)
