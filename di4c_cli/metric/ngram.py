"""N-gram models by Witten–Bell interpolation; that of characters, of order 6, judges the task `words`."""

from __future__ import annotations

import hashlib
from collections.abc import Sequence

import numpy as np

from di4c_cli.errors import UserError

NGRAM_ORDER = 6


class NgramModel:
    """P(c | h) = (N(hc) + T(h) P(c | h')) / (N(h) + T(h)), h' being h without its oldest symbol.

    N counts, T(h) is the number of different symbols seen after h; below order one the distribution is uniform over
    the `base` symbols, of which 0 is unknown. N-grams are integers in that base, so that counting and lookup are sorts.
    """

    def __init__(self, sequences: Sequence[np.ndarray], base: int, start: int, order: int) -> None:
        """`sequences` of symbols `(n,)`; each is preceded by as many symbols `start` as a history needs."""
        if base**order >= 2**63:
            raise UserError(f"{base - 1} symbols are too many for order {order}.", "Lower the order.")
        self.order, self.base, self.start = order, base, start
        self.tables = [self._count(sequences, length) for length in range(1, order + 1)]

    def _windows(self, codes: np.ndarray, length: int) -> np.ndarray:
        """The n-gram that ends at each symbol."""
        padded = np.concatenate([np.full(length, self.start), codes])
        out = np.zeros(len(codes), dtype=np.int64)
        for offset in range(1, length + 1):
            out = out * self.base + padded[offset : offset + len(codes)]
        return out

    def _count(self, sequences: Sequence[np.ndarray], length: int) -> tuple[np.ndarray, ...]:
        """Sorted n-grams with counts, and sorted contexts with N(h) and T(h)."""
        grams = np.concatenate([self._windows(codes, length) for codes in sequences])
        seen, count = np.unique(grams, return_counts=True)
        context, first = np.unique(seen // self.base, return_index=True)
        kinds = np.diff(np.append(first, len(seen)))
        return seen, count, context, np.add.reduceat(count, first), kinds

    def log2_of(self, codes: np.ndarray) -> np.ndarray:
        """log2 P of each symbol given those before it, `(n,)`."""
        p = np.full(len(codes), 1.0 / self.base)
        for length, (seen, count, context, total, kinds) in enumerate(self.tables, 1):
            grams = self._windows(codes, length)
            here = _lookup(seen, count, grams)
            n, t = _lookup(context, total, grams // self.base), _lookup(context, kinds, grams // self.base)
            known = n > 0
            p[known] = (here[known] + t[known] * p[known]) / (n[known] + t[known])
        out: np.ndarray = np.log2(p)
        return out


class CharacterModel(NgramModel):
    """The n-grams of characters; every text starts at a word, so spaces precede it."""

    def __init__(self, lines: Sequence[str], order: int = NGRAM_ORDER) -> None:
        alphabet = sorted(set("".join(lines)) | {" "})
        self.index = {character: number for number, character in enumerate(alphabet, 1)}
        self.digest = text_digest(lines)
        super().__init__([self._codes(line) for line in lines], len(alphabet) + 1, self.index[" "], order)

    @property
    def name(self) -> str:
        return f"character {self.order}-gram (Witten-Bell)"

    def _codes(self, text: str) -> np.ndarray:
        """Characters as numbers; 0 is unknown."""
        return np.array([self.index.get(c, 0) for c in text], dtype=np.int64)

    def log2_probs(self, text: str) -> np.ndarray:
        """log2 P of each character of `text` given those before it, `(len(text),)`."""
        return self.log2_of(self._codes(text))

    def bits_per_character(self, texts: Sequence[str]) -> np.ndarray:
        """Mean bits per character of each text, `(n,)`; an empty text counts as one unknown character."""
        return np.array([-self.log2_probs(t).mean() if t else np.log2(self.base) for t in texts])


def text_digest(lines: Sequence[str]) -> str:
    """A hash of lines of text."""
    return hashlib.blake2b("\n".join(lines).encode(), digest_size=8).hexdigest()


def _lookup(keys: np.ndarray, values: np.ndarray, wanted: np.ndarray) -> np.ndarray:
    """values[keys == wanted], 0 where there is none; `keys` sorted."""
    place = np.searchsorted(keys, wanted).clip(max=len(keys) - 1)
    return np.where(keys[place] == wanted, values[place], 0)
