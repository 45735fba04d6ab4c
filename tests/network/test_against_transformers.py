"""Our Llama-like and BERT-like networks give the logits of transformers' own classes, for every option."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
import torch

from di4c_cli import load
from tests.helpers import masked_lms

pytest.importorskip("transformers")
CASES: list[tuple[str, dict[str, Any]]] = [
    ("llada", {}),
    ("llada", {"num_key_value_heads": 4, "rope_theta": 5e5}),
    ("llada", {"num_key_value_heads": 1, "tie_word_embeddings": True, "attention_bias": True}),
    ("dream", {}),
    ("dream", {"tie_word_embeddings": True, "num_key_value_heads": 4, "rope_theta": 1e6}),
    ("dream", {"num_key_value_heads": 1, "rms_norm_eps": 1e-5}),
    ("a2d", {}),
    ("a2d", {"head_dim": 6, "tie_word_embeddings": False}),
    ("a2d", {"attention_bias": True, "num_key_value_heads": 1, "rope_theta": 1e6}),
    ("bert", {}),
    ("bert", {"hidden_act": "gelu_new", "type_vocab_size": 1, "tie_word_embeddings": False}),
    ("bert", {"hidden_act": "relu", "layer_norm_eps": 1e-5}),
    ("roberta", {}),
    ("roberta", {"hidden_act": "relu", "type_vocab_size": 1}),
    ("esm", {}),
    ("esm", {"token_dropout": False, "emb_layer_norm_before": True}),
    ("esm", {"position_embedding_type": "absolute", "emb_layer_norm_before": True}),
    ("esm", {"position_embedding_type": "absolute", "token_dropout": False, "tie_word_embeddings": False}),
]


@pytest.mark.parametrize("attention", ["eager", "sdpa"])
@pytest.mark.parametrize(("kind", "options"), CASES, ids=lambda value: str(value).replace(" ", ""))
@torch.no_grad()
def test_logits_equal_those_of_transformers(kind: str, options: dict[str, Any], attention: str, tmp_path: Path) -> None:
    theirs = masked_lms.make(kind, attn_implementation=attention, **options)
    model = load(str(masked_lms.write(tmp_path / "model", kind, theirs)))
    assert model.load_report is not None and "unknown" not in model.load_report.counts
    ids = masked_lms.inputs(kind)
    x, want = masked_lms.ours(kind, ids), masked_lms.expected(kind, masked_lms.logits(kind, theirs, ids))
    network: Any = model.denoiser.network
    h = network.body(x, torch.zeros(len(x)))
    shown = ids != masked_lms.PADDING  # nobody asks for the logits at padding
    got = network.head(h.flatten(0, 1), torch.arange(x.shape[1]).repeat(len(x))).view(want.shape)
    torch.testing.assert_close(got[shown], want[shown], rtol=0, atol=2e-5)
    at = torch.tensor([3, 0, 7])
    torch.testing.assert_close(network.body(x, torch.zeros(len(x)), at=at), h[:, at], rtol=0, atol=2e-5)
