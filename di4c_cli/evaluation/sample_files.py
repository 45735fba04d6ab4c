"""Files of samples and references: images (folder, .npy, .npz), texts (.txt, .jsonl), ids (.npy)."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import numpy as np

from di4c_cli.errors import UserError
from di4c_cli.foreign.arrays import ArrayArchive, ArrayOnDisk, open_npy
from di4c_cli.foreign.images import SUFFIXES, open_image
from di4c_cli.foreign.regular import in_memory_limit, open_regular, regular_file, size_text
from di4c_cli.foreign.text import line_text, lines, record_text

TEXT_SUFFIXES = (".txt", ".jsonl")
IMAGES_PER_BATCH = 500
STRING_BYTES = 8
"""Memory that a byte of a text file may take as a string, copied once."""


def is_text(path: Path) -> bool:
    """Whether a file holds texts."""
    return path.suffix in TEXT_SUFFIXES


def read_texts(path: Path) -> list[str]:
    """One text per line; in .jsonl the field `text`. Empty lines are skipped."""
    limit = in_memory_limit() // STRING_BYTES
    if regular_file(path).stat().st_size > limit:
        raise UserError(f"{path} is larger than {size_text(limit)}, too large for this machine.", "Split the file.")
    read = record_text if path.suffix == ".jsonl" else line_text
    out = [read(line, f"{path}, line {number}") for number, line in lines(path)]
    if not out:
        raise UserError(f"{path} holds no samples.", "Write one text per line.")
    return out


def read_array(path: Path) -> np.ndarray | ArrayOnDisk:
    """A .npy array, or the `images` (else the first array) of an .npz."""
    with open_regular(path) as file:
        zipped = file.read(2) == b"PK"
    if not zipped:
        return open_npy(path)
    with ArrayArchive(path) as archive:
        return archive.read(archive.first("images", *archive.names[:1]) or "images")


def image_batches(path: Path) -> Iterator[np.ndarray]:
    """uint8 images `(n, H, W)` or `(n, H, W, 3)`, a batch at a time; all of one size, at least one."""
    if not path.exists():
        raise UserError(f"There is no {path}.", "Check the path.")
    shapes: set[tuple[int, ...]] = set()
    for batch in _folder(path) if path.is_dir() else _array(path):
        shapes |= {image.shape for image in batch}
        if len(shapes) > 1:
            raise UserError(f"The images of {path} have different sizes.", "Resize them to one size.")
        yield np.stack(batch)
    if not shapes:
        raise UserError(f"{path} holds no samples.", "Put images there, or name another file.")


def _array(path: Path) -> Iterator[list[np.ndarray]]:
    images = read_array(path)
    sound = images.ndim == 3 or (images.ndim == 4 and images.shape[-1] == 3)
    if images.dtype != np.uint8 or 0 in images.shape[1:] or not sound:
        shape = "×".join(map(str, images.shape))
        raise UserError(
            f"{path} holds {images.dtype} of {shape}, not uint8 images (n, H, W) or (n, H, W, 3).", "Convert it."
        )
    for start in range(0, len(images), IMAGES_PER_BATCH):
        yield list(images[start : start + IMAGES_PER_BATCH])


def files_of(path: Path) -> list[Path]:
    """The files that `image_batches` reads, in its order."""
    return sorted(p for p in path.rglob("*") if p.suffix.lower() in SUFFIXES) if path.is_dir() else [path]


def _folder(path: Path) -> Iterator[list[np.ndarray]]:
    names = files_of(path)
    for start in range(0, len(names), IMAGES_PER_BATCH):
        yield [open_image(name) for name in names[start : start + IMAGES_PER_BATCH]]
