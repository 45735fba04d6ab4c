"""Data of the embedded worlds, split into a training and a held-out part."""

from __future__ import annotations

import lzma
from dataclasses import dataclass
from functools import lru_cache

import numpy as np
import torch
from torch import Tensor

from di4c_cli import embedded
from di4c_cli.errors import UserError

HELD_OUT_DIGITS = 500
TEXT_LENGTH = 16
PIXEL_LEVELS = {"tiny-digits": 8, "tiny-pixels": 16}


@dataclass(frozen=True)
class World:
    """Clean samples of one embedded world; `label` is None for text."""

    train: Tensor
    held_out: Tensor
    train_label: Tensor | None = None
    held_out_label: Tensor | None = None


@lru_cache(maxsize=4)
def load_world(name: str) -> World:
    """`(N, D)` long samples of a world, training and held out."""
    if name in PIXEL_LEVELS:
        return _digits(PIXEL_LEVELS[name])
    if name == "tiny-vq":
        return _fashion()
    if name == "tiny-text":
        return _speeches()
    raise UserError(
        f"There is no embedded data called '{name}'.", f"Choose one of {', '.join(embedded.WORLDS)}."
    )


def _digits(levels: int) -> World:
    """8x8 digits with grey levels 0..16 cut to `levels` equal classes; a fixed shuffle splits them."""
    with np.load(embedded.data("digits.npz")) as file:
        grey, label = file["x"].astype(np.int64), file["label"].astype(np.int64)
    x = torch.from_numpy(np.minimum(grey * levels // 16, levels - 1))
    return _split(x, torch.from_numpy(label), HELD_OUT_DIGITS)


def _fashion() -> World:
    with np.load(embedded.data("fashion.npz")) as file:
        x, label = file["codes"].astype(np.int64), file["label"].astype(np.int64)
    return _split(torch.from_numpy(x), torch.from_numpy(label), len(x) // 5)


def _split(x: Tensor, label: Tensor, held_out: int) -> World:
    order = torch.randperm(len(x), generator=torch.Generator().manual_seed(0))
    train, rest = order[held_out:], order[:held_out]
    return World(x[train], x[rest], label[train], label[rest])


def speech_lines() -> tuple[list[str], list[str]]:
    """Addresses since 1945, one a line: (training, held out = every tenth)."""
    text = lzma.decompress(embedded.data("sotu.txt.xz").read_bytes()).decode()
    lines = text.split("\n")
    return [t for i, t in enumerate(lines) if i % 10 != 9], [t for i, t in enumerate(lines) if i % 10 == 9]


def _speeches() -> World:
    """Windows of `TEXT_LENGTH` consecutive words and marks, all among the 1500 most frequent ones."""
    from tokenizers import Tokenizer

    tokenizer = Tokenizer.from_file(str(embedded.asset("text-units.json")))
    unknown = tokenizer.get_vocab()["[MASK]"]
    parts = []
    for lines, stride in zip(speech_lines(), (1, 4), strict=True):
        windows = []
        for line in lines:
            window = torch.tensor(tokenizer.encode(line).ids).unfold(0, TEXT_LENGTH, stride)
            windows.append(window[window.ne(unknown).all(1)])
        parts.append(torch.cat(windows))
    return World(parts[0], parts[1])
