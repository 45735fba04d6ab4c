"""GPT-2's byte-pair tokenizer from the list of merges in the package: text models need no download for it."""

from __future__ import annotations

import lzma
from functools import lru_cache
from typing import TYPE_CHECKING

from di4c_cli import embedded

if TYPE_CHECKING:
    from tokenizers import Tokenizer

SIZE = 50257
END_OF_TEXT = "<|endoftext|>"


def byte_symbols() -> list[str]:
    """The 256 printable stand-ins for bytes, in the order of GPT-2's ids: visible ones come first."""
    visible = [*range(33, 127), *range(161, 173), *range(174, 256)]
    hidden = [byte for byte in range(256) if byte not in visible]
    return [chr(byte) for byte in visible] + [chr(256 + number) for number in range(len(hidden))]


@lru_cache(maxsize=1)
def _merges() -> list[tuple[str, str]]:
    text = lzma.decompress(embedded.asset("gpt2-merges.txt.xz").read_bytes()).decode()
    pairs = [line.split(" ") for line in text.splitlines()[1:] if line]
    return [(left, right) for left, right in pairs]


def tokenizer(symbols: int = SIZE) -> Tokenizer:
    """The tokenizer, or its first `symbols` entries for a model with a smaller vocabulary.

    GPT-2's ids are ordered by age, bytes, then merges as they were learnt: a prefix is a tokenizer too.
    Below 256 entries the bytes without an id are left out of the encoded text.
    """
    from tokenizers import Tokenizer, decoders, models, pre_tokenizers

    vocabulary = {character: number for number, character in enumerate(byte_symbols()[:symbols])}
    merges = _merges()[: max(0, symbols - 256)]
    for left, right in merges:
        vocabulary[left + right] = len(vocabulary)
    built = Tokenizer(models.BPE(vocab=vocabulary, merges=merges))
    built.pre_tokenizer = pre_tokenizers.ByteLevel(add_prefix_space=False)
    built.decoder = decoders.ByteLevel()
    if symbols >= SIZE:
        built.add_special_tokens([END_OF_TEXT])
    return built
