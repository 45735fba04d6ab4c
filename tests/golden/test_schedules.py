"""Reveal schedules and guided logits of the published MaskGIT code."""

from __future__ import annotations

from pathlib import Path

import torch
from safetensors.torch import load_file
from torch import Tensor, nn

from di4c_cli.denoiser import Prediction
from di4c_cli.process import Masked
from di4c_cli.sampler.confidence import reveal_counts
from di4c_cli.sampler.predictor import GuidedPrediction


def test_reveal_counts_are_the_stored_schedules(golden: Path) -> None:
    stored = load_file(golden / "maskgit" / "io.safetensors")
    names = [name for name in stored if name.startswith("schedule.")]
    assert len(names) >= 15
    for name in names:
        _, side, mode, steps = name.split(".")
        free = torch.tensor([int(side[1:]) ** 2])
        counts = reveal_counts(Masked(5, mode), int(steps.removeprefix("step")), free)
        assert torch.equal(counts[:, 0], stored[name]), name


class Stored(nn.Module):
    """Logits as they are in the file."""

    def head(self, h: Tensor, d: Tensor) -> Tensor:
        return h


def test_guided_prediction_gives_the_stored_logits(golden: Path) -> None:
    stored = load_file(golden / "maskgit" / "io.safetensors")
    with_label, without = stored["logits_drop_no"], stored["logits_drop_all"]
    batch, length, symbols = with_label.shape
    x = torch.full((batch, length), symbols)
    process = Masked(symbols)
    guided = GuidedPrediction(
        Prediction(Stored(), process, x, with_label),
        Prediction(Stored(), process, x, without),
        stored["cfg.w"].expand(batch),
    )
    b, d = (a.reshape(-1) for a in torch.meshgrid(torch.arange(batch), torch.arange(length), indexing="ij"))
    got = guided.logits(b, d).view_as(with_label)
    torch.testing.assert_close(got, stored["cfg.logits"], atol=3e-5, rtol=0)
