"""Images encoded once by the teacher's VQGAN, in shards on disk: an interrupted encoding goes on."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np
import torch
from PIL import Image
from torch import Tensor

from di4c_cli.data import cache
from di4c_cli.data.images import image_files, open_image
from di4c_cli.errors import UserError

if TYPE_CHECKING:
    from di4c_cli.codec.vq import Vq

SHARD = 256
"""Images per file of codes: the first batch waits for a file of each of its images."""
AT_ONCE = 16


class VqItems:
    """Codes of images and of their mirror images, encoded when they are first needed."""

    def __init__(self, folder: Path, codec: Vq, mirrored: bool) -> None:
        self.paths, self.labels, self.classes = image_files(folder)
        self.codec, self.mirrored = codec, mirrored
        grid = codec.vqgan.grid
        self.length = int(grid[0] * grid[1])
        self._shards: dict[tuple[int, bool], np.ndarray] = {}
        self._folder: Path | None = None

    def __len__(self) -> int:
        return len(self.paths)

    def rows(self, index: list[int], mirror: Tensor | None = None) -> tuple[Tensor, Tensor | None]:
        wanted = [False] * len(index) if mirror is None or not self.mirrored else mirror.tolist()
        codes = [
            self._shard(item // SHARD, flip)[item % SHARD] for item, flip in zip(index, wanted, strict=True)
        ]
        label = None if self.labels is None else torch.tensor([self.labels[item] for item in index])
        return torch.from_numpy(np.stack(codes).astype(np.int64)), label

    def name(self, item: int) -> str:
        return str(self.paths[item])

    @property
    def folder(self) -> Path:
        """The cache entry; it depends on the images and on the VQGAN's weights."""
        if self._folder is None:
            key: dict[str, Any] = {"images": cache.stamp(self.paths), "vqgan": self._fingerprint()}
            self._folder = cache.entry("codes", key)
        return self._folder

    def _fingerprint(self) -> list[float]:
        return [float(value.cpu().double().sum()) for value in self.codec.vqgan.state_dict().values()]

    def _shard(self, number: int, flip: bool) -> np.ndarray:
        if (number, flip) not in self._shards:
            path = self.folder / f"{'mirror' if flip else 'plain'}-{number:06d}.npy"
            if not path.is_file():
                with cache.building(path):
                    if not path.is_file():
                        self._encode(path, self.paths[number * SHARD : (number + 1) * SHARD], flip)
            self._shards[number, flip] = np.load(path, mmap_mode="r")
        return self._shards[number, flip]

    def _encode(self, target: Path, paths: list[Path], flip: bool) -> None:
        vqgan = self.codec.vqgan
        parts = []
        for start in range(0, len(paths), AT_ONCE):
            chosen = paths[start : start + AT_ONCE]
            batch = torch.stack([load_square(path, vqgan.resolution, vqgan.in_channels) for path in chosen])
            parts.append(self.codec.encode_images(batch.flip(-1) if flip else batch))
        codes = torch.cat(parts).numpy().astype(np.uint16 if vqgan.codes <= 2**16 else np.uint32)
        cache.write_array(target, codes)


def load_square(path: Path, side: int, channels: int) -> Tensor:
    """An image (C, side, side) in [-1, 1]: the shorter side resized, the middle cut out."""
    image = open_image(path, channels)
    if min(image.size) < 1:
        raise UserError(f"{path} is empty.", "Remove it.")
    scale = side / min(image.size)
    size = (max(side, round(image.width * scale)), max(side, round(image.height * scale)))
    if image.size != size:
        image = image.resize(size, Image.Resampling.BICUBIC)
    left, top = (size[0] - side) // 2, (size[1] - side) // 2
    pixels = np.asarray(image.crop((left, top, left + side, top + side)), np.float32)
    return torch.from_numpy(pixels.copy()).view(side, side, channels).permute(2, 0, 1) / 127.5 - 1
