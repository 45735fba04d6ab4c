"""Images from folders and `.npz` files as pixel levels of the teacher's size, or as codes of its VQGAN."""

from __future__ import annotations

import zipfile
from functools import cached_property
from pathlib import Path
from typing import TYPE_CHECKING

import numpy as np
import torch
from PIL import Image, UnidentifiedImageError
from torch import Tensor

from di4c_cli.data import cache
from di4c_cli.data.items import TensorItems
from di4c_cli.errors import UserError
from di4c_cli.memory import physical_memory
from di4c_cli.noise import Noise

if TYPE_CHECKING:
    from di4c_cli.codec.vq import Vq

SUFFIXES = (".png", ".jpg", ".jpeg", ".webp", ".bmp")
IMAGE_ARRAYS = ("x", "images", "image", "codes", "arr_0")
LABEL_ARRAYS = ("label", "labels", "y", "arr_1")
VQ_SHARD = 256
"""Images per file of codes: the first batch waits for a file of each of its images."""
VQ_BATCH = 16
"""Images per call of the VQGAN's encoder."""


def quantise(pixels: np.ndarray, levels: int) -> np.ndarray:
    """0..255 to the nearest of `levels` grey levels, the inverse of decoding."""
    if levels == 256:
        return pixels
    kind = np.uint8 if levels < 256 else np.int32
    return np.rint(pixels.astype(np.float64) * (levels - 1) / 255).astype(kind)


def _inside(folder: Path) -> list[Path]:
    return sorted(path for path in folder.rglob("*") if path.suffix.lower() in SUFFIXES)


def open_image(path: Path, channels: int | None = None) -> Image.Image:
    """An image with one or three channels, or with as many as it has; the error names a damaged file."""
    try:
        with Image.open(path) as image:
            grey = image.mode == "L" if channels is None else channels == 1
            return image.convert("L" if grey else "RGB")
    except (UnidentifiedImageError, OSError, SyntaxError, ValueError, Image.DecompressionBombError) as error:
        raise UserError(f"{path} is not a readable image.", "Fix or remove it.") from error


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
        if image.size != (width, height):
            problem = f"{path} is {image.width}x{image.height}, the teacher's images are {width}x{height}."
            raise UserError(problem, "Resize it or name other images.")
        pixels = quantise(np.asarray(image, np.uint8), self.levels)
        return torch.from_numpy(pixels.copy()).view(height, width, channels).permute(2, 0, 1)


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
    x = next((found[name] for name in IMAGE_ARRAYS if name in found), None)
    label = next((found[name] for name in LABEL_ARRAYS if name in found), None)
    if x is None or x.dtype.kind not in "ui" or x.ndim < 2:
        raise UserError(f"{path} has no integers under {', '.join(IMAGE_ARRAYS)}.", "Rename the array.")
    if label is not None and label.dtype.kind not in "ui":
        raise UserError(f"The labels of {path} are not integers.", "Number the classes from 0 on.")
    if label is not None and label.size != len(x):
        raise UserError(f"{path} has {len(x)} images and {label.size} labels.", "Write it again.")
    if x.ndim > 2:
        x = _pictures(x, path, shape, levels)
    ids = torch.from_numpy(x.reshape(len(x), -1).copy())
    labels = None if label is None else torch.from_numpy(label.astype(np.int64).reshape(-1))
    return TensorItems(ids, labels, shape if ids.shape[1] == length else None, str(path))


def check_unpacked(path: Path, memory: int) -> None:
    """Reject a compressed file that claims to unpack to more than `memory` bytes, before it is read."""
    try:
        with zipfile.ZipFile(path) as archive:
            size = sum(record.file_size for record in archive.infolist())
    except (OSError, ValueError, zipfile.BadZipFile):
        return  # not an archive: the reader reports that
    if size > memory:
        problem = f"{path} unpacks to {size / 2**30:.0f} GB, larger than this machine's memory."
        raise UserError(problem, "Name a folder of images instead.")


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
    """Codes of images and of their mirror images, encoded when first needed and kept in shards on disk.

    With `random_crop` the square is at a random place of each image, the same in every epoch.
    """

    def __init__(self, folder: Path, codec: Vq, mirrored: bool, random_crop: bool = False) -> None:
        super().__init__(folder)
        self.codec, self.mirrored, self.random_crop = codec, mirrored, random_crop
        grid = codec.vqgan.grid
        self.length = int(grid[0] * grid[1])
        self._shards: dict[tuple[int, bool], np.ndarray] = {}

    def rows(self, index: list[int], mirror: Tensor | None = None) -> tuple[Tensor, Tensor | None]:
        flips = [False] * len(index) if mirror is None or not self.mirrored else mirror.tolist()
        codes = [self._shard(item // VQ_SHARD, flip)[item % VQ_SHARD] for item, flip in zip(index, flips, strict=True)]
        return torch.from_numpy(np.stack(codes).astype(np.int64)), self.labels_of(index)

    @cached_property
    def folder(self) -> Path:
        """The cache entry; it depends on the images and on the VQGAN's weights."""
        sums = [float(value.cpu().double().sum()) for value in self.codec.vqgan.state_dict().values()]
        crop = {"crop": "random"} if self.random_crop else {}
        return cache.entry("codes", {"images": cache.stamp(self.paths), "vqgan": sums, **crop})

    def _shard(self, number: int, flip: bool) -> np.ndarray:
        if (number, flip) not in self._shards:
            path = self.folder / f"{'mirror' if flip else 'plain'}-{number:06d}.npy"
            if not path.is_file():
                with cache.building(path):
                    if not path.is_file():
                        self._encode(path, range(len(self.paths))[number * VQ_SHARD : (number + 1) * VQ_SHARD], flip)
            self._shards[number, flip] = np.load(path, mmap_mode="r")
        return self._shards[number, flip]

    def _encode(self, target: Path, items: range, flip: bool) -> None:
        vqgan = self.codec.vqgan
        parts = []
        places = Noise(0, list(items), "crop").uniform("place", 2).tolist() if self.random_crop else None
        for start in range(0, len(items), VQ_BATCH):
            squares = [
                load_square(self.paths[item], vqgan.resolution, vqgan.in_channels, places and places[item - items[0]])
                for item in items[start : start + VQ_BATCH]
            ]
            batch = torch.stack(squares)
            parts.append(self.codec.encode_images(batch.flip(-1) if flip else batch))
        codes = torch.cat(parts).numpy().astype(np.uint16 if vqgan.codes <= 2**16 else np.uint32)
        cache.write_array(target, codes)


def load_square(path: Path, side: int, channels: int, place: list[float] | None = None) -> Tensor:
    """An image (C, side, side) in [-1, 1]: the shorter side resized, the middle cut out.

    With `place`, two numbers in [0, 1), it is resized bilinearly, and the square is cut out there.
    """
    image = open_image(path, channels)
    if min(image.size) < 1:
        raise UserError(f"{path} is empty.", "Remove it.")
    scale = side / min(image.size)
    size = (max(side, round(image.width * scale)), max(side, round(image.height * scale)))
    if image.size != size:
        image = image.resize(size, Image.Resampling.BICUBIC if place is None else Image.Resampling.BILINEAR)
    left, top = (size[0] - side) // 2, (size[1] - side) // 2
    if place is not None:
        left, top = (int(u * (length - side + 1)) for u, length in zip(place, size, strict=True))
    pixels = np.asarray(image.crop((left, top, left + side, top + side)), np.float32)
    return torch.from_numpy(pixels.copy()).view(side, side, channels).permute(2, 0, 1) / 127.5 - 1
