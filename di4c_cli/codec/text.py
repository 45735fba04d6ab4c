"""Token ids to text through a `tokenizers` tokenizer."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING

from torch import Tensor

from di4c_cli.codec.base import Codec
from di4c_cli.errors import UserError

if TYPE_CHECKING:
    from tokenizers import Tokenizer

MAX_BYTES = 100 * 2**20


class Text(Codec):
    """A tokenizer or its tokenizer.json; ids and text both ways."""

    kind = "text"

    def __init__(self, source: Path | Tokenizer) -> None:
        self.tokenizer = read(source) if isinstance(source, Path) else source

    def decode(self, x: Tensor) -> list[str]:
        """`(n, D)` -> n strings; ids outside the vocabulary (a mask under way) show as `[MASK]`."""
        size = self.tokenizer.get_vocab_size()
        return [self._decode_row(row, size) for row in x.tolist()]

    def _decode_row(self, row: list[int], size: int) -> str:
        pieces: list[str] = []
        run: list[int] = []
        for token in [*row, -1]:
            if 0 <= token < size:
                run.append(token)
                continue
            if run:
                pieces.append(self.tokenizer.decode(run, skip_special_tokens=False))
                run = []
            if token >= size:
                pieces.append("[MASK]")
        return "".join(pieces)

    def encode(self, text: str) -> list[int]:
        ids: list[int] = self.tokenizer.encode(text, add_special_tokens=False).ids
        return ids


def read(path: Path) -> Tokenizer:
    """A tokenizer.json; data only, nothing in it is code."""
    from tokenizers import Tokenizer

    if path.stat().st_size > MAX_BYTES:
        raise UserError(f"The tokenizer {path.name} is larger than any real one.", "Replace the file.")
    try:
        return Tokenizer.from_file(str(path))
    except Exception as error:  # the library raises plain Exception for unreadable files
        raise UserError(f"The tokenizer {path.name} cannot be read: {error}.", "Replace the file.") from error
