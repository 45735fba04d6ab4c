"""U-Net and VQGAN through their format adapters against the outputs of the original code.

Every size comes from the golden folder.
"""

from __future__ import annotations

from pathlib import Path

import pytest
import torch
from safetensors.torch import load_file
from torch import Tensor

from di4c_cli import load
from di4c_cli.codec.vq import assemble
from di4c_cli.network.unet import UNet
from di4c_cli.network.vqgan import VQGAN
from di4c_cli.teacher import pickles
from di4c_cli.teacher.formats import vqgan as vqgan_format
from di4c_cli.teacher.model_files import ModelFiles

FOLDERS = ["teacher", "di4c_student"]
WEIGHTS = ["live", "ema"]


def read_unet(folder: Path, weights: str) -> UNet:
    model = load(str(folder), weights=weights)
    network = model.denoiser.network
    assert isinstance(network, UNet)
    assert model.config.kind == ("student" if folder.name == "di4c_student" else "teacher")
    return network


@pytest.mark.parametrize("who", FOLDERS)
def test_unet_parameters_stand_in_the_published_order(golden: Path, who: str) -> None:
    """The EMA is a list without names: it can only be read if our order is the published one."""
    stored = pickles.read_pickle(next((golden / "tauldr" / who).glob("checkpoints/*.pt")))["model"]
    net = read_unet(golden / "tauldr" / who, "ema")
    weights = [name for name in stored if not name.startswith("ema_")]
    names = [name.removeprefix("net.").removeprefix("module.") for name in weights]
    assert list(net.state_dict()) == names == [name for name, _ in net.named_parameters()]
    assert [a.shape for a in stored["ema_shadow_params"]] == [p.shape for p in net.parameters()]


@torch.no_grad()
@pytest.mark.parametrize("weights", WEIGHTS)
@pytest.mark.parametrize("who", FOLDERS)
def test_unet_gives_the_stored_outputs(golden: Path, who: str, weights: str) -> None:
    net = read_unet(golden / "tauldr" / who, weights)
    io = load_file(golden / "tauldr" / who / "io.safetensors")
    x, t, lam = io["x"], io["t"], io.get("lams")
    torch.testing.assert_close(net.net_out(x, t, None, lam), io[f"{weights}.net_out"], atol=2e-5, rtol=0)
    hidden = net.body(x, t, None, lam)
    d = torch.arange(net.length).repeat(len(x))
    logits = net.head(hidden.reshape(-1, net.width), d).reshape(*x.shape, net.symbols)
    expected = io[f"{weights}.logits"]
    torch.testing.assert_close(logits.softmax(-1), expected.softmax(-1), atol=2e-5, rtol=0)
    # Below -6 the reference itself is float32 rounding noise around its constant 1e-6.
    certain = expected > -6
    torch.testing.assert_close(logits[certain], expected[certain], atol=2e-3, rtol=0)
    if f"{weights}.probs" in io:
        torch.testing.assert_close(logits.softmax(-1), io[f"{weights}.probs"], atol=2e-5, rtol=0)


@torch.no_grad()
def test_tauldr_teacher_loads_its_averaged_weights(golden: Path) -> None:
    """Without an option the model is the one its authors evaluate."""
    io = load_file(golden / "tauldr" / "teacher" / "io.safetensors")
    ours = load(str(golden / "tauldr" / "teacher")).log_probs(io["x"], io["t"]).exp()
    torch.testing.assert_close(ours, io["ema.probs"], atol=2e-5, rtol=0)


@torch.no_grad()
def test_unet_latent_embedding_is_the_stored_one(golden: Path) -> None:
    net = read_unet(golden / "tauldr" / "di4c_student", "ema")
    io = load_file(golden / "tauldr" / "di4c_student" / "io.safetensors")
    features = net.latent_features(io["lams"], net.time_features(io["t"]))
    assert features is not None
    torch.testing.assert_close(net.latent_embedding(features), io["ema.lemb_down"], atol=2e-5, rtol=0)


def at(time: Tensor, start: Tensor | None = None) -> tuple[Tensor, Tensor]:
    wide = time.double()
    return (torch.zeros_like(wide) if start is None else start.double()), wide


def test_tauldr_configuration_gives_the_stored_process(golden: Path) -> None:
    """The configuration beside the checkpoint gives the process the original rebuilds from it."""
    process = load(str(golden / "tauldr" / "teacher")).denoiser.process
    io = load_file(golden / "tauldr" / "teacher" / "io.safetensors")
    torch.testing.assert_close(process.base_rate.float(), io["forward.base_rate"], atol=5e-6, rtol=0)
    torch.testing.assert_close(process.beta(io["t"]).float(), io["forward.beta_t"], rtol=1e-5, atol=0)
    elapsed = process.elapsed(io["t"]).float()
    torch.testing.assert_close(elapsed, io["forward.beta_integral_t"], rtol=1e-5, atol=1e-5)
    for key, time in (("q_t0", "t"), ("q_s0", "s"), ("q_tiny0", "forward.t_tiny")):
        matrix = process.transition(*at(io[time])).float()
        torch.testing.assert_close(matrix, io[f"forward.{key}"], atol=5e-6, rtol=0)
    torch.testing.assert_close(process.rate(io["t"]).float(), io["forward.rate_t"], rtol=2e-4, atol=1e-3)


@pytest.fixture
def vqgan(golden: Path) -> VQGAN:
    found = vqgan_format.read(ModelFiles.at(golden / "vqgan"))
    assert found.unused and all(name.startswith("loss.") for name in found.unused)
    return assemble(found.tensors, found.settings)


@torch.no_grad()
def test_vqgan_gives_the_stored_outputs(golden: Path, vqgan: VQGAN) -> None:
    io = load_file(golden / "vqgan" / "io.safetensors")
    image = io["image"]
    torch.testing.assert_close(vqgan.encoder(image), io["encoder_out"], atol=5e-5, rtol=0)
    torch.testing.assert_close(vqgan.pre_quant(image), io["pre_quant"], atol=5e-5, rtol=0)
    codes = vqgan.encode(image)
    assert io["code"].shape[1:] == vqgan.grid
    assert torch.equal(codes, io["code"].flatten(1))
    torch.testing.assert_close(vqgan.quantize(io["pre_quant"])[0], io["quantized"], atol=5e-5, rtol=0)
    torch.testing.assert_close(vqgan.decode(codes), io["reconstruction"], atol=2e-4, rtol=0)
    torch.testing.assert_close(vqgan.decode(io["codes_in"].flatten(1)), io["decoded"], atol=2e-4, rtol=0)
