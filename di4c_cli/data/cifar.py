"""CIFAR-10 in its published binary form, and as PNG sheets."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import torch

from di4c_cli.data.images import quantise
from di4c_cli.data.items import TensorItems
from di4c_cli.errors import UserError
from di4c_cli.foreign.images import open_image
from di4c_cli.foreign.regular import read_bytes
from di4c_cli.foreign.structured import read_json

IMAGE_SHAPE = (3, 32, 32)
RECORD_BYTES = 1 + 3 * 32 * 32
MAX_BATCH_BYTES = 2**30
"""A published batch has 31 MB."""
FETCH_AGAIN = "Fetch it again."


def find_cifar(folder: Path) -> Path | None:
    """The folder that holds the training files: `folder` itself or one directly below it."""
    for candidate in (folder, *sorted(path for path in folder.iterdir() if path.is_dir())):
        for suffix in (".bin", ".png"):
            if (candidate / f"data_batch_1{suffix}").is_file():
                return candidate
    return None


def open_cifar(folder: Path, levels: int = 256) -> TensorItems:
    """The 50 000 training images in the teacher's levels, (C, H, W) flattened, with their labels if there are any."""
    sheets = sorted(folder.glob("data_batch_*.png"))
    x, label = _sheets(folder, sheets) if sheets else _binary(sorted(folder.glob("data_batch_*.bin")))
    labels = None if label is None else torch.from_numpy(label)
    return TensorItems(torch.from_numpy(quantise(x, levels)), labels, IMAGE_SHAPE, str(folder))


def _binary(paths: list[Path]) -> tuple[np.ndarray, np.ndarray]:
    """One label byte, then 1024 red, green and blue bytes for each image."""
    parts = []
    for path in paths:
        raw = np.frombuffer(read_bytes(path, MAX_BATCH_BYTES, "batch of CIFAR-10"), np.uint8)
        if len(raw) == 0 or len(raw) % RECORD_BYTES:
            raise UserError(f"{path} is cut off in record {len(raw) // RECORD_BYTES}.", FETCH_AGAIN)
        records = raw.reshape(-1, RECORD_BYTES)
        if records[:, 0].max() > 9:
            bad = int((records[:, 0] > 9).argmax())
            raise UserError(f"{path}, record {bad} has the label {records[bad, 0]}.", FETCH_AGAIN)
        parts.append(records)
    every = np.concatenate(parts)
    return every[:, 1:].copy(), every[:, 0].astype(np.int64)


def _sheets(folder: Path, paths: list[Path]) -> tuple[np.ndarray, np.ndarray | None]:
    """Each row of 1024 pixels is an image; the labels of all sheets are one JSON list."""
    parts = []
    for path in paths:
        pixels = open_image(path, channels=3)
        if pixels.shape[1] != 32 * 32:
            raise UserError(f"{path} is {pixels.shape[1]} pixels wide instead of 1024.", FETCH_AGAIN)
        parts.append(pixels.transpose(0, 2, 1).reshape(len(pixels), -1))
    x = np.concatenate(parts)
    return x, _labels(folder, len(x))


def _labels(folder: Path, count: int) -> np.ndarray | None:
    for name in ("train_lables.json", "train_labels.json"):  # the first spelling is the published one
        path = folder / name
        if path.is_file():
            found = read_json(path, what="list of labels", hint=FETCH_AGAIN)
            if not isinstance(found, list) or not all(type(label) is int and 0 <= label <= 9 for label in found):
                raise UserError(f"{path} is not a list of labels from 0 to 9.", FETCH_AGAIN)
            if len(found) != count:
                raise UserError(f"{path} has {len(found)} labels for {count} images.", FETCH_AGAIN)
            return np.asarray(found, np.int64)
    return None
