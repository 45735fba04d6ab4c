"""A small local causal judge."""

from __future__ import annotations

from pathlib import Path

import pytest
import torch


@pytest.fixture(scope="session")
def judge_folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A GPT-2 of a few thousand random weights with GPT-2's first 600 tokens and end-of-text."""
    transformers = pytest.importorskip("transformers", reason="transformers is not installed (extra `text`)")
    from di4c_cli.codec.gpt2 import END_OF_TEXT, tokenizer

    folder = tmp_path_factory.mktemp("judge")
    built = tokenizer(600)
    built.add_special_tokens([END_OF_TEXT])
    end = built.token_to_id(END_OF_TEXT)
    transformers.PreTrainedTokenizerFast(
        tokenizer_object=built, bos_token=END_OF_TEXT, eos_token=END_OF_TEXT
    ).save_pretrained(folder)
    torch.manual_seed(0)
    config = transformers.GPT2Config(
        vocab_size=601, n_positions=64, n_embd=16, n_layer=1, n_head=2, bos_token_id=end, eos_token_id=end
    )
    transformers.GPT2LMHeadModel(config).save_pretrained(folder)
    return folder
