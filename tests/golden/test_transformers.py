"""The published transformers, weight for weight: our forward passes against stored outputs.

Every size is read from the files, so that the same tests run on another golden folder.
"""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest
import torch
from safetensors.torch import load_file
from torch import Tensor

from di4c_cli.network import build
from di4c_cli.network.dit import DiT
from di4c_cli.network.maskgit import MaskGit

Tensors = dict[str, Tensor]


def depth(tensors: Tensors, prefix: str) -> int:
    return 1 + max(int(key[len(prefix) :].split(".")[0]) for key in tensors if key.startswith(prefix))


def make_dit(tensors: Tensors, length: int, heads: int, time_conditioning: bool) -> DiT:
    """A DiT of the sizes of `tensors`, holding them; every name must match."""
    states, width = tensors["vocab_embed.embedding"].shape
    network = build(
        {
            "type": "dit",
            "symbols": states - 1,
            "length": length,
            "width": width,
            "depth": depth(tensors, "blocks."),
            "heads": heads,
            "cond_dim": len(tensors["sigma_map.mlp.0.bias"]),
            "dropout": 0.1,
            "time_conditioning": time_conditioning,
            "latent": {} if "latent_projection.0.weight" in tensors else None,
        }
    )
    network.load_state_dict(tensors, strict=True)
    assert isinstance(network, DiT)
    return network.eval()


def make_maskgit(tensors: Tensors, heads: int, classes: int) -> MaskGit:
    positions, rows = tensors["bias"].shape
    network = build(
        {
            "type": "maskgit",
            "symbols": rows - 2 - classes,
            "length": positions - 1,
            "width": tensors["tok_emb.weight"].shape[1],
            "depth": depth(tensors, "transformer.layers."),
            "heads": heads,
            "mlp": len(tensors["transformer.layers.0.1.fn.net.0.bias"]),
            "labels": classes,
            "dropout": 0.1,
            "latent": {} if "latent_projection.0.weight" in tensors else None,
        }
    )
    network.load_state_dict(tensors, strict=True)
    assert isinstance(network, MaskGit)
    return network.eval()


def bare(tensors: Tensors) -> Tensors:
    return {key.removeprefix("backbone."): value for key, value in tensors.items()}


def time_of(sigma: Tensor) -> Tensor:
    """The time with the given log-linear noise level, in float64: near t = 1 the map is steep."""
    return -torch.expm1(-sigma.double()) / (1 - 1e-3)


@torch.no_grad()
def check(network: DiT | MaskGit, x: Tensor, expected: Tensor, atol: float, **given: Any) -> None:
    """Both ways to the logits: all columns at once, and the head over the real symbols row by row."""
    given.setdefault("t", torch.zeros(len(x)))
    h = network.body(x, **given)
    torch.testing.assert_close(network.logits(h), expected, rtol=0, atol=atol)
    rows = network.head(h.flatten(0, 1), torch.arange(x.shape[1]).repeat(len(x)))
    torch.testing.assert_close(rows, expected[..., : network.symbols].flatten(0, 1), rtol=0, atol=atol)


@pytest.mark.parametrize(
    ("name", "key", "timed"),
    [
        ("sdtt", "logits", True),
        ("sdtt", "logits_sigma0", False),
        ("mdlm", "logits_sigma_as_given", True),
        ("mdlm", "logits_sigma0", False),
        ("mdlm", "logits", None),
    ],
)
def test_dit_teacher(golden: Path, name: str, key: str, timed: bool | None) -> None:
    """`timed` None honours the flag in the file."""
    io = load_file(golden / name / "io.safetensors")
    config = json.loads((golden / name / "config.json").read_text())
    config = config.get("model", config)
    flag = bool(config["time_conditioning"]) if timed is None else timed
    tensors = bare(load_file(golden / name / "model.safetensors"))
    network = make_dit(tensors, io["xt"].shape[1], config["n_heads"], flag)
    check(network, io["xt"], io[key], 2e-5, t=time_of(io["sigma"]))


def test_rotary_buffer_is_the_stored_one(golden: Path) -> None:
    tensors = bare(load_file(golden / "sdtt" / "model.safetensors"))
    config = json.loads((golden / "sdtt" / "config.json").read_text())["model"]
    fresh = DiT(3, 4, config["hidden_size"], 1, config["n_heads"], 2)
    torch.testing.assert_close(fresh.rotary_emb.inv_freq, tensors["rotary_emb.inv_freq"], rtol=1e-6, atol=0)


def student_weights(golden: Path, which: str) -> Tensors:
    """Live weights, or the EMA: a list without names in the order of the parameters."""
    saved = torch.load(golden / "sdtt_di4c_student" / "last.ckpt", weights_only=True, map_location="cpu")
    tensors = bare(saved["state_dict"])
    if which == "ema":
        names = [key for key in tensors if key != "rotary_emb.inv_freq"]
        tensors |= dict(zip(names, saved["ema"]["shadow_params"], strict=True))
    return tensors


@pytest.mark.parametrize("which", ["live", "ema"])
def test_dit_student(golden: Path, which: str) -> None:
    folder = golden / "sdtt_di4c_student"
    io = load_file(folder / "io.safetensors")
    heads = json.loads((folder / "config.json").read_text())["model"]["n_heads"]
    tensors = student_weights(golden, which)
    plain = make_dit(tensors, io["xt"].shape[1], heads, time_conditioning=False)
    timed = make_dit(tensors, io["xt"].shape[1], heads, time_conditioning=True)
    with torch.no_grad():
        features, token = plain.latent_projection.features(io["z"]), plain.latent_projection(io["z"])
    torch.testing.assert_close(features, io["z_embedding"], rtol=0, atol=1e-4)
    torch.testing.assert_close(token, io[f"{which}.latent_token"], rtol=0, atol=3e-5)
    check(plain, io["xt"], io[f"{which}.logits_sigma0"], 3e-5, lam=io["z"])
    check(timed, io["xt"], io[f"{which}.logits"], 3e-5, lam=io["z"], t=time_of(io["sigma"]))
    if which == "live":
        check(plain, io["xt"], io["live.logits_sigma0_no_latent"], 3e-5)


def test_our_parameter_order_is_the_published_one(golden: Path) -> None:
    """The EMA list of a Lightning file can only be read if our order equals its order."""
    config = json.loads((golden / "sdtt_di4c_student" / "config.json").read_text())["model"]
    tensors = student_weights(golden, "live")
    network = make_dit(tensors, config["length"], config["n_heads"], time_conditioning=False)
    assert list(network.state_dict()) == list(tensors)


def maskgit_case(golden: Path, name: str, file: str) -> tuple[MaskGit, Tensors, Tensor]:
    """The network, its inputs and outputs, and the labels with dropped ones as -1."""
    folder = golden / name
    io = load_file(folder / "io.safetensors")
    tensors = torch.load(folder / file, weights_only=True, map_location="cpu")["model_state_dict"]
    heads = json.loads((folder / "hyper.json").read_text())["heads"]
    classes = tensors["bias"].shape[1] - io["logits"].shape[-1] - 1
    labels = io["labels"].masked_fill(io["drop_label"].bool(), -1)
    return make_maskgit(tensors, heads, classes), io, labels


def test_maskgit_teacher(golden: Path) -> None:
    network, io, labels = maskgit_case(golden, "maskgit", "MaskGIT_ImageNet_256.pth")
    x = io["img_token"].flatten(1)
    check(network, x, io["logits"], 3e-5, label=labels)
    check(network, x, io["logits_drop_no"], 3e-5, label=io["labels"])
    check(network, x, io["logits_drop_all"], 3e-5, label=torch.full_like(labels, -1))
    check(network, x, io["logits_drop_none"], 3e-5, label=None)


def test_maskgit_student(golden: Path) -> None:
    network, io, labels = maskgit_case(golden, "maskgit_di4c_student", "current.pth")
    x = io["img_token"].flatten(1)
    with torch.no_grad():
        features, token = network.latent_projection.features(io["z"]), network.latent_projection(io["z"])
    torch.testing.assert_close(features, io["z_embedding"], rtol=0, atol=1e-4)
    torch.testing.assert_close(token, io["latent_token"], rtol=0, atol=5e-5)
    check(network, x, io["logits"], 5e-5, label=labels, lam=io["z"])
    check(network, x, io["logits"], 5e-5, label=labels, lam=io["z"][:, 0])
    check(network, x, io["logits_no_z"], 5e-5, label=labels)
