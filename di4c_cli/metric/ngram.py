"""The character n-gram model that judges the task `words`: Witten–Bell interpolation, order 6."""

from __future__ import annotations

import hashlib
from collections.abc import Sequence

import numpy as np

from di4c_cli.errors import UserError

NGRAM_ORDER = 6


class CharacterModel:
    """P(c | h) = (N(hc) + T(h) P(c | h')) / (N(h) + T(h)), h' being h without its oldest character.

    N counts, T(h) is the number of different characters seen after h; below order one the distribution is uniform over
    the alphabet and one unknown character. N-grams are integers in base |alphabet| + 1, so that counting and
    lookup are sorts.
    """

    def __init__(self, lines: Sequence[str], order: int = NGRAM_ORDER) -> None:
        self.order = order
        alphabet = sorted(set("".join(lines)) | {" "})
        if (len(alphabet) + 1) ** order >= 2**63:
            raise UserError(f"{len(alphabet)} characters are too many for order {order}.", "Lower the order.")
        self.index = {character: number for number, character in enumerate(alphabet, 1)}
        self.base = len(alphabet) + 1
        self.digest = text_digest(lines)
        self._tables = [self._count(lines, length) for length in range(1, order + 1)]

    @property
    def name(self) -> str:
        return f"character {self.order}-gram (Witten-Bell)"

    def _codes(self, text: str) -> np.ndarray:
        """Characters as numbers; 0 is unknown. Starts with a space, as every sample starts at a word."""
        return np.array([self.index[" "], *(self.index.get(c, 0) for c in text)], dtype=np.int64)

    def _windows(self, codes: np.ndarray, length: int) -> np.ndarray:
        """The n-gram ending at each character after the first; missing history is spaces."""
        padded = np.concatenate([np.full(length - 1, self.index[" "]), codes])
        out = np.zeros(len(codes), dtype=np.int64)
        for offset in range(length):
            out = out * self.base + padded[offset : offset + len(codes)]
        return out[1:]

    def _count(self, lines: Sequence[str], length: int) -> tuple[np.ndarray, ...]:
        """Sorted n-grams with counts, and sorted contexts with N(h) and T(h)."""
        grams = np.concatenate([self._windows(self._codes(line), length) for line in lines])
        seen, count = np.unique(grams, return_counts=True)
        context, first = np.unique(seen // self.base, return_index=True)
        kinds = np.diff(np.append(first, len(seen)))
        return seen, count, context, np.add.reduceat(count, first), kinds

    def log2_probs(self, text: str) -> np.ndarray:
        """log2 P of each character of `text` given those before it, `(len(text),)`."""
        codes = self._codes(text)
        p = np.full(len(codes) - 1, 1.0 / self.base)
        for length, (seen, count, context, total, kinds) in enumerate(self._tables, 1):
            grams = self._windows(codes, length)
            here = _lookup(seen, count, grams)
            n, t = _lookup(context, total, grams // self.base), _lookup(context, kinds, grams // self.base)
            known = n > 0
            p[known] = (here[known] + t[known] * p[known]) / (n[known] + t[known])
        out: np.ndarray = np.log2(p)
        return out

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
