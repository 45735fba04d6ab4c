"""Token streams on disk, memory-mapped: text that is encoded once into a cache, and files of ids."""

from __future__ import annotations

import json
from collections.abc import Iterable, Iterator
from itertools import islice
from pathlib import Path
from typing import Any

import numpy as np
import torch
from tokenizers import Tokenizer
from torch import Tensor

from di4c_cli import files
from di4c_cli.codec.text import END_OF_TEXT
from di4c_cli.data import cache
from di4c_cli.data.text import documents
from di4c_cli.errors import UserError

MASK_TOKEN = "[MASK]"
SUFFIXES = (".npy", ".bin")
DOCUMENTS_PER_CALL = 512
"""Documents that the tokenizer encodes at once."""


class PackedItems:
    """Windows of `length` ids cut from one long stream; an incomplete last one is left out.

    They do not overlap, unless `per_length` windows begin within the length of one. With `frame` every window begins
    and ends with that id, as in the training of the published language models (`wrap` of MDLM).
    """

    def __init__(self, ids: np.ndarray, length: int, where: str, frame: int | None = None, per_length: int = 1) -> None:
        self.ids, self.length, self.where, self.frame = ids, length, where, frame
        self.cut = length if frame is None else length - 2
        self.stride = max(1, self.cut // per_length)

    def __len__(self) -> int:
        return max(0, (len(self.ids) - self.cut) // self.stride + 1)

    def rows(self, index: list[int], mirror: Tensor | None = None) -> tuple[Tensor, Tensor | None]:
        windows = [self.ids[item * self.stride : item * self.stride + self.cut].astype(np.int64) for item in index]
        x = torch.from_numpy(np.stack(windows))
        if self.frame is not None:
            edge = torch.full((len(x), 1), self.frame)
            x = torch.cat([edge, x, edge], dim=1)
        return x, None

    def name(self, item: int) -> str:
        return f"{self.where}, record {item}"


def open_token_file(path: Path, length: int, symbols: int) -> PackedItems:
    """`.npy`: ids in one or two dimensions; `.bin`: 16-bit ids (32-bit for vocabularies that need them)."""
    if path.suffix == ".bin":
        kind = np.dtype("<u2" if symbols <= 2**16 else "<u4")
        if path.stat().st_size % kind.itemsize or not path.stat().st_size:
            raise UserError(f"{path} does not hold whole {8 * kind.itemsize}-bit ids.", "Write it again.")
        return PackedItems(np.memmap(path, kind, "r"), length, str(path))
    try:
        ids = np.load(path, mmap_mode="r", allow_pickle=False)
    except (ValueError, OSError, EOFError) as error:
        raise UserError(f"{path} is not a readable .npy file: {error}.", "Write it again.") from error
    if ids.dtype.kind not in "ui" or ids.ndim not in (1, 2):
        problem = f"{path} holds {ids.dtype} in {ids.ndim} dimensions."
        raise UserError(problem, "Store integers in one or two dimensions.")
    # rows of a two-dimensional array are windows of their own length
    return PackedItems(ids.reshape(-1), length if ids.ndim == 1 else ids.shape[1] or length, str(path))


def encode(texts: Iterable[str], tokenizer: Tokenizer) -> Iterator[list[int]]:
    """Ids of each document, with the end-of-text separator after it.

    A tokenizer with few words encodes unknown words as the mask; they are left out.
    """
    separator, remaining = tokenizer.token_to_id(END_OF_TEXT), iter(texts)
    mask = tokenizer.token_to_id(MASK_TOKEN)
    while batch := list(islice(remaining, DOCUMENTS_PER_CALL)):
        for encoding in tokenizer.encode_batch_fast(batch, add_special_tokens=False):
            ids = encoding.ids if mask is None else [token for token in encoding.ids if token != mask]
            yield ids if separator is None else [*ids, separator]


def check_vocabulary(tokenizer: Tokenizer, symbols: int) -> None:
    """Reject a tokenizer with more entries than the teacher's vocabulary."""
    size = tokenizer.get_vocab_size()
    if tokenizer.id_to_token(symbols) == MASK_TOKEN:  # the mask has a name, but no text contains it
        size -= 1
    if size > symbols:
        problem = f"The tokenizer has {size} entries, the teacher's vocabulary {symbols}."
        raise UserError(problem, "Use the tokenizer that the teacher was trained with.")


def encode_files(paths: list[Path], tokenizer: Tokenizer) -> np.ndarray:
    """All documents as one memory-mapped stream of ids; encoded once, then read from the cache."""
    kind = np.dtype("<u2" if tokenizer.get_vocab_size() <= 2**16 else "<u4")
    key: dict[str, Any] = {"files": cache.stamp(paths), "tokenizer": tokenizer.to_str(), "type": kind.str}
    folder = cache.entry("tokens", key)
    with cache.building(folder):
        if not (folder / "meta.json").is_file():
            with files.new_folder(folder) as part:
                _write(part, paths, tokenizer, kind)
    ids = folder / "ids.bin"
    return np.memmap(ids, kind, "r") if ids.stat().st_size else np.zeros(0, kind)


def _write(part: Path, paths: list[Path], tokenizer: Tokenizer, kind: np.dtype) -> None:
    total = 0
    with (part / "ids.bin").open("wb") as out:
        for path in paths:
            for ids in encode(documents(path), tokenizer):
                total += len(ids)
                out.write(np.asarray(ids, kind).tobytes())
    (part / "meta.json").write_text(json.dumps({"ids": total, "files": [str(path) for path in paths]}))
