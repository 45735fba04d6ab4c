"""Models and metrics on a pretend Apple GPU: inputs from the CPU, no float64 on the device."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pytest
import torch

import di4c_cli
from di4c_cli.metric.exact import step_distribution
from di4c_cli.metric.features import ScriptedFeatures
from tests.helpers.pretend_mps import bare, pretend_mps
from tests.helpers.scan_network import Scan
from tests.helpers.small_models import small_model

MODELS = ["digits-student", "pixels-student", "words-student", "fashion-student"]


def test_pretend_mps_rejects_what_the_device_rejects() -> None:
    with pretend_mps():
        x = torch.ones(3).to("mps")
        assert x.device.type == "mps" and (x + 1).cpu().tolist() == [2.0, 2.0, 2.0]
        with pytest.raises(TypeError, match="float64"):
            x.double()
        with pytest.raises(RuntimeError, match="cpu and mps"):
            x + torch.ones(3)


@pytest.mark.parametrize("name", MODELS)
def test_log_probs_takes_inputs_from_the_cpu(name: str) -> None:
    model = di4c_cli.load(name)
    mask = model.denoiser.process.mask
    x = torch.full((2, model.denoiser.length), 1 if mask is None else mask)
    x[:, :3] = 1
    label = None if model.denoiser.labels is None else torch.tensor([1, -1])
    latent = torch.full((2, model.denoiser.latent.size), 0.3).squeeze(1)  # type: ignore[union-attr]
    expected = [model.log_probs(x, 0.5), model.log_probs(x, torch.tensor([0.5, 0.2]).double(), label, latent)]
    with pretend_mps():
        model.to("mps")
        got = [model.log_probs(x, 0.5), model.log_probs(x, torch.tensor([0.5, 0.2]).double(), label, latent)]
        assert all(value.device.type == "mps" for value in got)
    for value, wanted in zip(got, expected, strict=True):
        torch.testing.assert_close(bare(value), wanted, atol=1e-4, rtol=1e-4)


@pytest.mark.parametrize("name", MODELS)
def test_sample_and_decode_need_no_float64(name: str) -> None:
    with pretend_mps():
        model = di4c_cli.load(name).to("mps")
        x = model.sample(2, steps=2)
        assert len(model.decode(x.to("mps"))) == 2


@pytest.mark.parametrize("feature_input", ["bytes", "tf299"])
def test_features_are_widened_on_the_cpu(tmp_path: Path, feature_input: str) -> None:
    torch.jit.script(Scan()).save(str(tmp_path / "scan.pt"))
    network = ScriptedFeatures(tmp_path / "scan.pt", feature_input=feature_input)
    images = np.random.default_rng(0).integers(0, 256, size=(3, 8, 8, 3)).astype(np.uint8)
    features, classes = network.embed(images)
    network.network = Scan().eval()  # the same weights as a module: a script runs outside of the pretend device
    with pretend_mps():
        network.device = torch.device("mps")
        network.network.to("mps")
        got = network.embed(images)
    np.testing.assert_allclose(got[0], features, rtol=1e-5)
    assert classes is None or np.allclose(got[1], classes)  # type: ignore[arg-type]


def test_step_distribution_is_summed_on_the_cpu() -> None:
    model = small_model("student", world="space")
    expected = step_distribution(model.denoiser, 2, latents=4)
    with pretend_mps():
        model.to("mps")
        got = step_distribution(model.denoiser, 2, latents=4)
    np.testing.assert_allclose(got, expected, atol=1e-5)
