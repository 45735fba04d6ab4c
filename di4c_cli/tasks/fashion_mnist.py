"""Fashion-MNIST from its original IDX files, gzipped or not."""

from __future__ import annotations

import gzip
import zlib
from pathlib import Path

import numpy as np

from di4c_cli.errors import UserError

FASHION_MNIST_FOLDER = Path("/usr/share/datasets/fashion-mnist")
"""Where Debian's package dataset-fashion-mnist puts the images."""


def read_idx(path: Path) -> np.ndarray:
    """An unsigned-byte IDX file as an array."""
    raw = path.read_bytes()
    if path.suffix == ".gz":
        try:
            raw = gzip.decompress(raw)
        except (OSError, EOFError, zlib.error) as error:
            raise UserError(f"{path} is damaged: {error}.", "Download it again.") from error
    if len(raw) < 4 or raw[:3] != b"\x00\x00\x08":
        raise UserError(
            f"{path} is not an IDX file of unsigned bytes.", "Name the folder with the original files."
        )
    rank = raw[3]
    shape = tuple(int(n) for n in np.frombuffer(raw, ">u4", rank, 4))
    data = np.frombuffer(raw, np.uint8, offset=4 + 4 * rank)
    if data.size != int(np.prod(shape)):
        raise UserError(f"{path} is incomplete.", "Download it again.")
    return data.reshape(shape)


def fashion_mnist(folder: Path) -> tuple[np.ndarray, np.ndarray]:
    """Training images uint8 `(60000, 28, 28)` and labels `(60000,)`."""
    found = []
    for stem in ("train-images-idx3-ubyte", "train-labels-idx1-ubyte"):
        candidates = [folder / f"{stem}.gz", folder / stem]
        path = next((c for c in candidates if c.is_file()), None)
        if path is None:
            raise UserError(
                f"{folder} has no {stem}(.gz).",
                "Install the Debian package dataset-fashion-mnist or name a folder with it.",
            )
        found.append(read_idx(path))
    return found[0], found[1]
