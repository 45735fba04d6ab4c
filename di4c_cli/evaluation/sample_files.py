"""Files of samples and references: images (folder, .npy, .npz), texts (.txt, .jsonl), ids (.npy)."""

from __future__ import annotations

import json
import zipfile
from collections.abc import Iterator
from pathlib import Path

import numpy as np

from di4c_cli.data.images import SUFFIXES, open_image
from di4c_cli.errors import UserError

TEXT_SUFFIXES = (".txt", ".jsonl")
IMAGES_PER_BATCH = 500


def is_text(path: Path) -> bool:
    """Whether a file holds texts."""
    return path.suffix in TEXT_SUFFIXES


def read_texts(path: Path) -> list[str]:
    """One text per line; in .jsonl the field `text`. Empty lines are skipped."""
    if not path.is_file():
        raise UserError(f"There is no file {path}.", "Check the path.")
    out = []
    for number, line in enumerate(path.read_text(encoding="utf-8", errors="replace").splitlines(), 1):
        if not line.strip():
            continue
        if path.suffix == ".jsonl":
            try:
                line = str(json.loads(line)["text"])
            except (ValueError, KeyError, TypeError) as error:
                raise UserError(f"{path}, line {number}: no JSON object with a text.", "Fix the line.") from error
        out.append(line)
    if not out:
        raise UserError(f"{path} holds no samples.", "Write one text per line.")
    return out


def read_array(path: Path) -> np.ndarray:
    """A .npy array, or the `images` (else the only array) of an .npz."""
    try:
        loaded = np.load(path, mmap_mode="r", allow_pickle=False)
        if isinstance(loaded, np.ndarray):
            return loaded
        with loaded:
            name = "images" if "images" in loaded.files else (loaded.files or [""])[0]
            out: np.ndarray = loaded[name]
            return out
    except (OSError, ValueError, KeyError, EOFError, zipfile.BadZipFile) as error:
        raise UserError(f"{path} is not a readable array file.", "Write it with numpy.save.") from error


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
    if images.dtype != np.uint8 or images.ndim not in (3, 4) or (images.ndim == 4 and images.shape[-1] != 3):
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
        yield [np.asarray(open_image(name)) for name in names[start : start + IMAGES_PER_BATCH]]
