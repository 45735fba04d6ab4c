"""U-Net and VQGAN against the outputs of the original code; every size comes from the golden folder."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
import torch
import yaml
from safetensors.torch import load_file
from torch import Tensor

from di4c_cli.network.unet import UNet
from di4c_cli.network.vqgan import VQGAN

FOLDERS = ["teacher", "di4c_student"]
WEIGHTS = ["live", "ema"]


def read_unet(folder: Path) -> tuple[UNet, dict[str, Tensor], list[Tensor]]:
    """An evaluation-mode network, its live weights and the unnamed EMA list."""
    config: dict[str, Any] = yaml.safe_load(next(folder.glob("config/*.yaml")).read_text())
    model, data = config["model"], config["data"]
    net = UNet(
        symbols=data["S"],
        shape=data["shape"],
        channels=model["ch"],
        multipliers=model["ch_mult"],
        blocks=model["num_res_blocks"],
        attention=model["scale_count_to_put_attn"],
        time_dim=model["time_embed_dim"],
        time_scale=model["time_scale_factor"],
        dropout=model["dropout"],
        latent={"dim": model["lam_raw_dim"]} if model.get("do_lam_embed") else None,
    )
    stored = torch.load(next(folder.glob("checkpoints/*.pt")), weights_only=True)["model"]
    average = stored.pop("ema_shadow_params")
    live = {
        name.replace("net.module.", "net.").removeprefix("net."): tensor
        for name, tensor in stored.items()
        if not name.startswith("ema_")
    }
    return net.eval(), live, average


@pytest.mark.parametrize("who", FOLDERS)
def test_parameters_stand_in_the_published_order(golden: Path, who: str) -> None:
    net, live, average = read_unet(golden / "tauldr" / who)
    assert list(net.state_dict()) == list(live) == [name for name, _ in net.named_parameters()]
    assert [a.shape for a in average] == [p.shape for p in net.parameters()]


@torch.no_grad()
@pytest.mark.parametrize("weights", WEIGHTS)
@pytest.mark.parametrize("who", FOLDERS)
def test_unet_forward(golden: Path, who: str, weights: str) -> None:
    net, live, average = read_unet(golden / "tauldr" / who)
    net.load_state_dict(live if weights == "live" else dict(zip(live, average)))
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
def test_first_latent_embedding(golden: Path) -> None:
    net, live, average = read_unet(golden / "tauldr" / "di4c_student")
    net.load_state_dict(dict(zip(live, average)))
    io = load_file(golden / "tauldr" / "di4c_student" / "io.safetensors")
    features = net.latent_features(io["lams"], net.time_features(io["t"]))
    assert features is not None
    torch.testing.assert_close(net.latent_embedding(features), io["ema.lemb_down"], atol=2e-5, rtol=0)


@pytest.fixture
def vqgan(golden: Path) -> VQGAN:
    params = yaml.safe_load((golden / "vqgan" / "model.yaml").read_text())["model"]["params"]
    layout = params["ddconfig"]
    model = VQGAN(
        channels=layout["ch"],
        multipliers=layout["ch_mult"],
        blocks=layout["num_res_blocks"],
        attention_resolutions=layout["attn_resolutions"],
        z_channels=layout["z_channels"],
        embed_dim=params["embed_dim"],
        codes=params["n_embed"],
        resolution=layout["resolution"],
        in_channels=layout["in_channels"],
        out_channels=layout["out_ch"],
    )
    stored = torch.load(golden / "vqgan" / "last.ckpt", weights_only=True)["state_dict"]
    model.load_state_dict({name: a for name, a in stored.items() if not name.startswith("loss.")})
    return model.eval()


@torch.no_grad()
def test_vqgan_forward(golden: Path, vqgan: VQGAN) -> None:
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
