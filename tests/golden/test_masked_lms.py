"""Golden sets of the masked language models: our logits against those of transformers' own classes, and our text."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
import torch
from safetensors.torch import load_file

from di4c_cli import load
from tests.helpers import masked_lms

GOLDEN = Path(__file__).parent
COUNTS = {
    "llada": {"matched": 1, "renamed": 21, "unused": 1},
    "dream": {"matched": 2, "renamed": 26, "unused": 1},
    "a2d": {"matched": 1, "renamed": 24, "unused": 1},
    "bert": {"renamed": 41, "unused": 3},
    "roberta": {"renamed": 41, "unused": 4},
    "esm": {"renamed": 41, "unused": 4},
}
"""The frequencies of rotary positions, which only ESM stores, are matched without being in the file."""


@pytest.mark.parametrize("kind", masked_lms.MASK)
@torch.no_grad()
def test_masked_lm_gives_the_stored_outputs(kind: str) -> None:
    io, model = load_file(GOLDEN / kind / "io.safetensors"), load(str(GOLDEN / kind))
    x, want = masked_lms.ours(kind, io["ids"]), masked_lms.expected(kind, io["logits"])
    network: Any = model.denoiser.network
    got = network.head(network.body(x, torch.zeros(len(x))).flatten(0, 1)).view(want.shape)
    shown = io["ids"] != masked_lms.PADDING
    torch.testing.assert_close(got[shown], want[shown], rtol=0, atol=2e-5)
    hidden = x == model.denoiser.symbols
    torch.testing.assert_close(model.log_probs(x, 0.5)[hidden], want[hidden].log_softmax(-1), rtol=0, atol=2e-5)
    assert model.config.provenance["format"] == kind


@pytest.mark.parametrize("kind", masked_lms.MASK)
def test_masked_lm_accounts_for_every_tensor(kind: str) -> None:
    report = load(str(GOLDEN / kind)).load_report
    stored = load_file(GOLDEN / kind / "model.safetensors")
    assert report is not None and report.counts == COUNTS[kind]
    named = {entry.note for entry in report.entries if entry.status == "renamed"}
    named |= {entry.name for entry in report.entries if entry.status in ("unused", "matched")}
    assert stored.keys() <= named


@pytest.mark.parametrize("kind", masked_lms.MASK)
def test_masked_lm_decodes_and_encodes_with_its_mask_anywhere(kind: str) -> None:
    model, mask, used = load(str(GOLDEN / kind)), masked_lms.MASK[kind], masked_lms.USED[kind]
    ids = torch.tensor([[mask - 1, mask, (mask + 1) % used, 0, used - 1 - (mask == used - 1)]])
    words = " ".join("[MASK]" if id == mask else f"w{id}" for id in ids[0].tolist())
    (text,) = model.decode(masked_lms.ours(kind, ids))
    assert text.replace("[MASK]", " [MASK] ").split() == words.split()
    shown = ids[ids != mask]
    assert model.codec.encode(words.replace("[MASK]", "<mask>")) == masked_lms.ours(kind, shown).tolist()
    assert model.denoiser.symbols == used - 1 and (model.sample(2, steps=3) < used - 1).all()
