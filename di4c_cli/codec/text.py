"""Token ids to text through a `tokenizers` tokenizer: that of a file, or GPT-2's, whose merges are in the package."""

from __future__ import annotations

import lzma
from functools import lru_cache
from itertools import groupby
from pathlib import Path

from tokenizers import Tokenizer, decoders, models, pre_tokenizers
from torch import Tensor

from di4c_cli import embedded
from di4c_cli.codec.base import Codec
from di4c_cli.foreign.tokenizer import BoundedTokenizer, TextTokenizer, read_tokenizer

GPT2_SIZE = 50257
END_OF_TEXT = "<|endoftext|>"


class Text(Codec):
    """A tokenizer or its tokenizer.json, which may come from a stranger; encodes and decodes."""

    kind = "text"

    def __init__(self, source: Path | TextTokenizer, mask_id: int | None = None) -> None:
        """`mask_id`: the mask's id in the file of a published vocabulary."""
        self.tokenizer = read_tokenizer(source, mask_id) if isinstance(source, Path) else source

    def decode(self, x: Tensor) -> list[str]:
        """`(n, D)` -> n strings; ids outside the vocabulary (masks of an unfinished sample) become `[MASK]`."""
        size = self.tokenizer.get_vocab_size()
        texts = []
        for row in x.tolist():
            text = ""
            for known, run in groupby(row, lambda token: 0 <= token < size):
                ids = list(run)
                text += self.tokenizer.decode(ids, skip_special_tokens=False) if known else "[MASK]" * len(ids)
            texts.append(text)
        return texts

    def encode(self, text: str) -> list[int]:
        return list(self.tokenizer.encode(text, add_special_tokens=False).ids)

    def normalized(self, text: str) -> str:
        """The text as the tokenizer reads it; some tokenizers lower all letters."""
        if isinstance(self.tokenizer, BoundedTokenizer):
            return self.tokenizer.normalized(text)
        normalizer = getattr(self.tokenizer, "normalizer", None)
        return text if normalizer is None else str(normalizer.normalize_str(text))


def gpt2_tokenizer(symbols: int = GPT2_SIZE) -> Tokenizer:
    """GPT-2's tokenizer, or its first `symbols` entries for a model with a smaller vocabulary.

    GPT-2's ids are bytes, then merges in the order in which they were learnt, so a prefix is a tokenizer too.
    Below 256 entries the bytes without an id are left out of the encoded text.
    """
    vocabulary = {character: number for number, character in enumerate(_byte_symbols()[:symbols])}
    merges = _gpt2_merges()[: max(0, symbols - 256)]
    for left, right in merges:
        vocabulary[left + right] = len(vocabulary)
    built = Tokenizer(models.BPE(vocab=vocabulary, merges=merges))
    built.pre_tokenizer = pre_tokenizers.ByteLevel(add_prefix_space=False)
    built.decoder = decoders.ByteLevel()
    if symbols >= GPT2_SIZE:
        built.add_special_tokens([END_OF_TEXT])
    return built


def _byte_symbols() -> list[str]:
    """The 256 printable characters for bytes in the order of GPT-2's ids: printable bytes come first."""
    visible = [*range(33, 127), *range(161, 173), *range(174, 256)]
    hidden = [byte for byte in range(256) if byte not in visible]
    return [chr(byte) for byte in visible] + [chr(256 + number) for number in range(len(hidden))]


@lru_cache(maxsize=1)
def _gpt2_merges() -> list[tuple[str, str]]:
    text = lzma.decompress(embedded.asset("gpt2-merges.txt.xz").read_bytes()).decode()
    return [(left, right) for left, right in (line.split(" ") for line in text.splitlines()[1:] if line)]
