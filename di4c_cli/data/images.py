"""Images from folders and `.npz` files as pixel levels of the teacher's size, or as codes of its VQGAN."""

from __future__ import annotations

import math
from functools import cached_property
from pathlib import Path
from typing import TYPE_CHECKING

import numpy as np
import torch
from PIL import Image
from torch import Tensor

from di4c_cli.data import cache
from di4c_cli.data.items import TensorItems
from di4c_cli.errors import UserError
from di4c_cli.foreign.arrays import ArrayArchive, as_integers
from di4c_cli.foreign.images import MAX_PIXELS, SUFFIXES, open_image
from di4c_cli.noise import Noise

if TYPE_CHECKING:
    from di4c_cli.codec.vq import Vq

IMAGE_ARRAYS = ("x", "images", "image", "codes", "arr_0")
LABEL_ARRAYS = ("label", "labels", "y", "arr_1")
LABEL_KINDS = "biufUS"
"""Kinds of arrays whose contents are told in the error; only integers are labels."""


def quantise(pixels: np.ndarray, levels: int) -> np.ndarray:
    """0..255 to the nearest of `levels` grey levels, the inverse of decoding."""
    if levels == 256:
        return pixels
    kind = np.uint8 if levels < 256 else np.int32
    return np.rint(pixels.astype(np.float64) * (levels - 1) / 255).astype(kind)


def _inside(folder: Path) -> list[Path]:
    return sorted(path for path in folder.rglob("*") if path.suffix.lower() in SUFFIXES)


class ImageFiles:
    """The image files of a folder in the order of their names; sub-folders are classes, numbered by name."""

    def __init__(self, folder: Path) -> None:
        classes = sorted(path for path in folder.iterdir() if path.is_dir() and path.name[:1] != ".")
        found = [(path, number) for number, place in enumerate(classes or [folder]) for path in _inside(place)]
        self.paths = [path for path, _ in found]
        self.labels = [number for _, number in found] if classes else None

    def __len__(self) -> int:
        return len(self.paths)

    def name(self, item: int) -> str:
        return str(self.paths[item])

    def labels_of(self, index: list[int]) -> Tensor | None:
        """Labels `(n,)` of some images, or None."""
        return None if self.labels is None else torch.tensor([self.labels[item] for item in index])


class ImageFolder(ImageFiles):
    """Images as pixel levels, read on demand; each must have the teacher's size."""

    def __init__(self, folder: Path, shape: tuple[int, ...], levels: int) -> None:
        super().__init__(folder)
        self.shape, self.levels, self.length = shape, levels, int(np.prod(shape))

    def rows(self, index: list[int], mirror: Tensor | None = None) -> tuple[Tensor, Tensor | None]:
        x = torch.stack([self._read(self.paths[item]) for item in index])
        if mirror is not None:
            x = torch.where(mirror[:, None, None, None], x.flip(-1), x)
        return x.flatten(1).long(), self.labels_of(index)

    def _read(self, path: Path) -> Tensor:
        channels, height, width = self.shape
        image = open_image(path, channels)
        if image.shape[:2] != (height, width):
            problem = f"{path} is {image.shape[1]}x{image.shape[0]}, the teacher's images are {width}x{height}."
            raise UserError(problem, "Resize it or name other images.")
        return torch.from_numpy(quantise(image, self.levels)).view(height, width, channels).permute(2, 0, 1)


def open_npz(path: Path, shape: tuple[int, ...] | None, length: int, levels: int) -> TensorItems:
    """`x` or `images` as `(N, H, W)`, `(N, H, W, C)` or `(N, D)`, and `label` or `labels` if there are any.

    Flattened samples and VQ codes are ids already; pictures are quantised to the teacher's levels.
    """
    with ArrayArchive(path) as file:
        name, label_name = file.first(*IMAGE_ARRAYS), file.first(*LABEL_ARRAYS)
        if name is None:
            raise UserError(f"{path} has no integers under {', '.join(IMAGE_ARRAYS)}.", "Rename the array.")
        x = as_integers(file.read(name), f"The images of {path}")
        label = None if label_name is None else as_integers(file.read(label_name, LABEL_KINDS), f"The labels of {path}")
    if x.ndim < 2:
        raise UserError(f"{path} holds images in {x.ndim} dimensions.", "Store them as (N, H, W) or (N, D).")
    if label is not None and (label.size != len(x) or label.shape[:1] != (len(x),)):
        raise UserError(f"{path} has {len(x)} images and {label.size} labels.", "Write it again.")
    if label is not None and label.size and label.min() < -1:
        raise UserError(f"{path} has the label {label.min()}.", "Number the classes from 0 on; -1 is no label.")
    if x.ndim > 2:
        x = _pictures(x, path, shape, levels)
    ids = torch.from_numpy(x.reshape(len(x), math.prod(x.shape[1:])).copy())
    labels = None if label is None else torch.from_numpy(label.astype(np.int64).reshape(-1))
    return TensorItems(ids, labels, shape if ids.shape[1] == length else None, str(path))


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


class VqItems(ImageFiles):
    """Codes of images and of their mirror images, encoded when a batch needs them and kept in one file of the cache.

    With `random_crop` the square is at a random place of each image, the same in every epoch.
    """

    def __init__(self, folder: Path, codec: Vq, mirrored: bool, random_crop: bool = False) -> None:
        super().__init__(folder)
        self.codec, self.mirrored, self.random_crop = codec, mirrored, random_crop
        grid = codec.vqgan.grid
        self.length = int(grid[0] * grid[1])

    def rows(self, index: list[int], mirror: Tensor | None = None) -> tuple[Tensor, Tensor | None]:
        flips = [False] * len(index) if mirror is None or not self.mirrored else mirror.tolist()
        wanted = list(zip(index, flips, strict=True))
        found = self.codes.find(_number(*image) for image in wanted)
        missing = {_number(*image): image for image in wanted if _number(*image) not in found}
        if missing:
            made = dict(zip(missing, self._encode(list(missing.values())), strict=True))
            self.codes.add(made)
            found |= made
        codes = np.stack([found[_number(*image)] for image in wanted]).astype(np.int64)
        return torch.from_numpy(codes), self.labels_of(index)

    @cached_property
    def codes(self) -> cache.Records:
        """The cache entry; it depends on the images and on the VQGAN's weights."""
        vqgan = self.codec.vqgan
        sums = [float(value.cpu().double().sum()) for value in vqgan.state_dict().values()]
        key = {"images": cache.stamp(self.paths), "vqgan": sums, "side": vqgan.resolution}
        folder = cache.entry("codes", key | ({"crop": "random"} if self.random_crop else {}))
        return cache.Records(folder / "codes.bin", self.length, np.uint16 if vqgan.codes <= 2**16 else np.uint32)

    def _encode(self, wanted: list[tuple[int, bool]]) -> np.ndarray:
        """Codes of images `(item, whether mirrored)`."""
        vqgan, places = self.codec.vqgan, [None] * len(wanted)
        if self.random_crop:
            places = Noise(0, [item for item, _ in wanted], "crop").uniform("place", 2).tolist()
        squares = []
        for (item, flip), place in zip(wanted, places, strict=True):
            square = load_square(self.paths[item], vqgan.resolution, vqgan.in_channels, place)
            squares.append(square.flip(-1) if flip else square)
        return self.codec.encode_images(torch.stack(squares)).numpy()


def _number(item: int, flip: bool) -> int:
    return 2 * item + flip


def load_square(path: Path, side: int, channels: int, place: list[float] | None = None) -> Tensor:
    """An image (C, side, side) in [-1, 1]: the shorter side resized, the middle cut out.

    With `place`, two numbers in [0, 1), it is resized bilinearly, and the square is cut out there.
    """
    image = Image.fromarray(open_image(path, channels))
    scale = side / min(image.size)
    size = (max(side, round(image.width * scale)), max(side, round(image.height * scale)))
    if size[0] * size[1] > MAX_PIXELS:
        raise UserError(f"{path} is {image.width}x{image.height}, too narrow to be cut to a square.", "Remove it.")
    if image.size != size:
        image = image.resize(size, Image.Resampling.BICUBIC if place is None else Image.Resampling.BILINEAR)
    left, top = (size[0] - side) // 2, (size[1] - side) // 2
    if place is not None:
        left, top = (int(u * (length - side + 1)) for u, length in zip(place, size, strict=True))
    pixels = np.asarray(image.crop((left, top, left + side, top + side)), np.float32)
    return torch.from_numpy(pixels.copy()).view(side, side, channels).permute(2, 0, 1) / 127.5 - 1
