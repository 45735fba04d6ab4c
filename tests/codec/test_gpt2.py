"""GPT-2's tokenizer from the merges in the package: the known ids, every byte, and its prefixes."""

from __future__ import annotations

import pytest
import torch

from di4c_cli import codec
from di4c_cli.codec.text import GPT2_SIZE, gpt2_tokenizer
from di4c_cli.errors import UserError


def test_gpt2_tokenizer_has_the_known_ids() -> None:
    tokenizer = gpt2_tokenizer()
    assert tokenizer.get_vocab_size() == GPT2_SIZE == 50257
    assert tokenizer.encode("Hello world").ids == [15496, 995]
    assert tokenizer.encode("<|endoftext|>").ids == [50256]
    assert tokenizer.token_to_id("Ġthe") == 262


@pytest.mark.parametrize("text", ["The quick brown fox.\n\n  tabs\tand  spaces", "naïve café — λ ≠ 0 🙂", "\x00\x7f"])
@pytest.mark.parametrize("symbols", [256, 1000, 50257])
def test_gpt2_tokenizer_round_trips_text(text: str, symbols: int) -> None:
    """From 256 entries on every byte has an id, so that nothing is lost."""
    built = codec.build({"type": "text", "name": "gpt2", "symbols": symbols})
    ids = built.encode(text)
    assert max(ids) < symbols and built.decode(torch.tensor([ids])) == [text]


def test_gpt2_tokenizer_below_256_entries_leaves_out_bytes() -> None:
    built = codec.build({"type": "text", "name": "gpt2", "symbols": 97})
    ids = built.encode("The fox, 42!\n")
    assert built.decode(torch.tensor([ids])) == ["Thefox,42!"]
    assert built.decode(torch.tensor([[*ids[:3], 97]])) == ["The[MASK]"]


def test_codec_build_rejects_unknown_tokenizers() -> None:
    with pytest.raises(UserError, match="--tokenizer"):
        codec.build({"type": "text", "name": "bert-base-uncased"})
    with pytest.raises(UserError, match="impossible"):
        codec.build({"type": "text", "name": "gpt2", "symbols": -3})
