"""Token streams on disk: text that is encoded once into a cache, and files of ids."""

from __future__ import annotations

import json
from collections.abc import Iterable, Iterator
from pathlib import Path
from typing import Any

import numpy as np
import torch
from torch import Tensor

from di4c_cli import files
from di4c_cli.codec.text import END_OF_TEXT
from di4c_cli.data import cache
from di4c_cli.data.text import documents
from di4c_cli.errors import UserError
from di4c_cli.foreign.arrays import ArrayOnDisk, as_integers, open_npy, open_raw
from di4c_cli.foreign.regular import open_regular
from di4c_cli.foreign.structured import read_json
from di4c_cli.foreign.text import BLOCK_BYTES, PIECE_CHARACTERS, Document, pieces
from di4c_cli.foreign.tokenizer import TextTokenizer

MASK_TOKEN = "[MASK]"
SUFFIXES = (".npy", ".bin")
DOCUMENTS_PER_CALL = 512
"""Documents that the tokenizer encodes at once."""
CHARACTERS_PER_CALL = 4 * PIECE_CHARACTERS
"""The same for long documents; a core tokenizes a piece at a time."""


class PackedItems:
    """Windows of `length` ids cut from one long stream; an incomplete last one is left out.

    They do not overlap, unless `per_length` windows begin within the length of one. With `frame` every window begins
    and ends with that id, as in the training of the published language models (`wrap` of MDLM).
    """

    def __init__(
        self, ids: np.ndarray | ArrayOnDisk, length: int, where: str, frame: int | None = None, per_length: int = 1
    ) -> None:
        self.ids, self.length, self.where, self.frame = ids, length, where, frame
        self.cut = length if frame is None else length - 2
        self.stride = max(1, self.cut // per_length)

    def __len__(self) -> int:
        return max(0, (len(self.ids) - self.cut) // self.stride + 1)

    def rows(self, index: list[int], mirror: Tensor | None = None) -> tuple[Tensor, Tensor | None]:
        cuts = (self.ids[item * self.stride : item * self.stride + self.cut] for item in index)
        windows = [as_integers(ids, f"The ids of {self.where}").astype(np.int64) for ids in cuts]
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
        return PackedItems(open_raw(path, np.dtype("<u2" if symbols <= 2**16 else "<u4")), length, str(path))
    ids = open_npy(path)
    if ids.dtype.kind not in "ui" or ids.ndim not in (1, 2):
        problem = f"{path} holds {ids.dtype} in {ids.ndim} dimensions."
        raise UserError(problem, "Store integers in one or two dimensions.")
    # rows of a two-dimensional array are windows of their own length
    return PackedItems(ids.flat(), length if ids.ndim == 1 else ids.shape[1] or length, str(path))


def encode(documents: Iterable[Document], tokenizer: TextTokenizer) -> Iterator[tuple[np.ndarray, bool]]:
    """Ids of each piece of the documents, and whether it is a document's last, which the end-of-text id follows.

    A tokenizer with few words encodes unknown words as the mask; they are left out.
    """
    separator, mask = tokenizer.token_to_id(END_OF_TEXT), tokenizer.token_to_id(MASK_TOKEN)
    for batch in _batches(_pieces(documents)):
        encoded = tokenizer.encode_batch_fast([text for text, _ in batch], add_special_tokens=False)
        for encoding, (_, last) in zip(encoded, batch, strict=True):
            ids = np.asarray(encoding.ids, np.uint32)
            ids = ids if mask is None else ids[ids != mask]
            yield ids if separator is None or not last else np.append(ids, np.uint32(separator)), last


def _pieces(documents: Iterable[Document]) -> Iterator[tuple[str, bool]]:
    """Every document in pieces of bounded length, the last one marked."""
    for document in documents:
        found = pieces(document) if isinstance(document, str) else document
        piece = next(found, "")
        for following in found:
            yield piece, False
            piece = following
        yield piece, True


def _batches(found: Iterator[tuple[str, bool]]) -> Iterator[list[tuple[str, bool]]]:
    """Pieces that the tokenizer encodes in one call; its memory grows with their length."""
    batch: list[tuple[str, bool]] = []
    for text, last in found:
        batch.append((text, last))
        if len(batch) == DOCUMENTS_PER_CALL or sum(len(text) for text, _ in batch) >= CHARACTERS_PER_CALL:
            yield batch
            batch = []
    if batch:
        yield batch


def check_vocabulary(tokenizer: TextTokenizer, symbols: int) -> None:
    """Reject a tokenizer with more entries than the teacher's vocabulary."""
    size = tokenizer.get_vocab_size()
    if tokenizer.id_to_token(symbols) == MASK_TOKEN:  # the mask has a name, but no text contains it
        size -= 1
    if size > symbols:
        problem = f"The tokenizer has {size} entries, the teacher's vocabulary {symbols}."
        raise UserError(problem, "Use the tokenizer that the teacher was trained with.")


def encode_files(paths: list[Path], tokenizer: TextTokenizer) -> np.ndarray | ArrayOnDisk:
    """All documents as one stream of ids on disk; encoded once, then read from the cache."""
    kind = np.dtype("<u2" if tokenizer.get_vocab_size() <= 2**16 else "<u4")
    key: dict[str, Any] = {"files": cache.stamp(paths), "tokenizer": tokenizer.to_str(), "type": kind.str}
    folder = cache.entry("tokens", key)
    with cache.building(folder):
        if not _is_complete(folder):
            with files.new_folder(folder) as part:
                _write(part, paths, tokenizer, kind)
    ids = folder / "ids.bin"
    return open_raw(ids, kind) if ids.stat().st_size else np.zeros(0, kind)


def _write(part: Path, paths: list[Path], tokenizer: TextTokenizer, kind: np.dtype) -> None:
    size, check = 0, cache.checksum(b"")
    with (part / "ids.bin").open("wb") as out:
        for path in paths:
            for ids, _ in encode(documents(path), tokenizer):
                content = ids.astype(kind).tobytes()
                size, check = size + len(content), cache.checksum(content, check)
                out.write(content)
    facts = {"bytes": size, "crc32": check.hex(), "files": [str(path) for path in paths]}
    (part / "meta.json").write_text(json.dumps(facts))


def _is_complete(folder: Path) -> bool:
    """Whether the ids are those that were written: a full disk or a careless copy can cut or alter them."""
    try:
        facts = read_json(folder / "meta.json")
        with open_regular(folder / "ids.bin") as file:
            check, size = cache.checksum(b""), 0
            while block := file.read(BLOCK_BYTES):
                check, size = cache.checksum(block, check), size + len(block)
    except (UserError, OSError):
        return False
    return isinstance(facts, dict) and facts.get("bytes") == size and facts.get("crc32") == check.hex()
