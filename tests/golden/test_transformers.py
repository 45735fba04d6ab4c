"""The published transformers through their format adapters: our outputs against the stored ones.

Every size is read from the files, so that the same tests run on another golden folder.
"""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest
import torch
from safetensors.torch import load_file, save_file
from torch import Tensor

from di4c_cli import load
from di4c_cli.model import Model
from di4c_cli.network.dit import DiT
from di4c_cli.network.maskgit import MaskGit
from tests.helpers.other_sizes import full_logits

Tensors = dict[str, Tensor]


def network_of(model: Model) -> Any:
    net = model.denoiser.network
    assert isinstance(net, (DiT, MaskGit))
    return net


def time_of(sigma: Tensor) -> Tensor:
    """The time with the given log-linear noise level, in float64: near t = 1 the map is steep."""
    return -torch.expm1(-sigma.double()) / (1 - 1e-3)


@torch.no_grad()
def check(network: Any, x: Tensor, expected: Tensor, atol: float, **given: Any) -> None:
    """Both ways to the logits: all columns at once, and the head over the real symbols row by row."""
    given.setdefault("t", torch.zeros(len(x)))
    h = network.body(x, **given)
    torch.testing.assert_close(full_logits(network, h), expected, rtol=0, atol=atol)
    rows = network.head(h.flatten(0, 1), torch.arange(x.shape[1]).repeat(len(x)))
    torch.testing.assert_close(rows, expected[..., : network.symbols].flatten(0, 1), rtol=0, atol=atol)


def check_probabilities(model: Model, x: Tensor, log_probs: Tensor, **given: Any) -> None:
    """The whole way through `log_probs`: the mask never predicted, known tokens kept."""
    ours = model.log_probs(x, 0.5, **given).exp()
    expected = log_probs[..., : model.denoiser.symbols].exp()
    torch.testing.assert_close(ours, expected, rtol=0, atol=1e-6)


def timed(model: Model) -> Any:
    """The network with its noise level switched on, whatever its configuration says."""
    network = network_of(model)
    network.time_conditioning = True
    return network


def test_sdtt_teacher_gives_the_stored_outputs(golden: Path) -> None:
    io = load_file(golden / "sdtt" / "io.safetensors")
    model = load(str(golden / "sdtt"))
    assert model.config.network["length"] == io["xt"].shape[1]
    check(network_of(model), io["xt"], io["logits_sigma0"], 2e-5, t=time_of(io["sigma"]))
    check_probabilities(model, io["xt"], io["log_probs_sigma0"])
    check(timed(model), io["xt"], io["logits"], 2e-5, t=time_of(io["sigma"]))


def test_mdlm_obeys_time_conditioning(golden: Path) -> None:
    io = load_file(golden / "mdlm" / "io.safetensors")
    model = load(str(golden / "mdlm"))
    flag = json.loads((golden / "mdlm" / "config.json").read_text())["time_conditioning"]
    assert network_of(model).time_conditioning is flag
    check(network_of(model), io["xt"], io["logits"], 2e-5, t=time_of(io["sigma"]))
    if flag is False:
        check_probabilities(model, io["xt"], io["log_probs"])
    for value, key in ((True, "logits_sigma_as_given"), (False, "logits_sigma0")):
        network_of(model).time_conditioning = value
        check(network_of(model), io["xt"], io[key], 2e-5, t=time_of(io["sigma"]))


@pytest.mark.parametrize("name", ["DUO", "udlm"])
def test_uniform_teacher_has_a_symbol_for_every_row(golden: Path, tmp_path: Path, name: str) -> None:
    """Duo and UDLM are MDLM's network with the noise level on; no row is a mask."""
    io = load_file(golden / "mdlm" / "io.safetensors")
    config = json.loads((golden / "mdlm" / "config.json").read_text())
    rows = config["vocab_size"]
    (tmp_path / "config.json").write_text(json.dumps(config | {"model_type": name, "time_conditioning": True}))
    (tmp_path / "model.safetensors").write_bytes((golden / "mdlm" / "model.safetensors").read_bytes())
    model = load(str(tmp_path))
    assert model.denoiser.symbols == rows and model.config.process["type"] == "uniform"
    assert model.config.provenance["format"] == "duo"
    check(network_of(model), io["xt"], io["logits_sigma_as_given"], 2e-5, t=time_of(io["sigma"]))
    assert model.sample(2, steps=3).shape == (2, config["model_length"])


def test_sdtt_teacher_with_a_doubled_prefix_is_the_same(golden: Path, tmp_path: Path) -> None:
    """The oldest SDTT teacher was pushed with one wrapper inside another."""
    tensors = load_file(golden / "sdtt" / "model.safetensors")
    save_file({f"backbone.{name}": tensor for name, tensor in tensors.items()}, tmp_path / "model.safetensors")
    (tmp_path / "config.json").write_text((golden / "sdtt" / "config.json").read_text())
    io = load_file(golden / "sdtt" / "io.safetensors")
    check(network_of(load(str(tmp_path))), io["xt"], io["logits_sigma0"], 2e-5)


def test_rotary_frequencies_are_the_stored_ones(golden: Path) -> None:
    tensors = load_file(golden / "sdtt" / "model.safetensors")
    network = network_of(load(str(golden / "sdtt")))
    fresh = network.rotary_emb.frequencies()
    torch.testing.assert_close(fresh, tensors["backbone.rotary_emb.inv_freq"], rtol=1e-6, atol=0)


@pytest.mark.parametrize("weights", ["live", "ema"])
def test_sdtt_student_gives_the_stored_outputs(golden: Path, weights: str) -> None:
    folder = golden / "sdtt_di4c_student"
    io = load_file(folder / "io.safetensors")
    model = load(str(folder), weights=weights)
    network = network_of(model)
    with torch.no_grad():
        features, token = network.latent_projection.features(io["z"]), network.latent_projection(io["z"])
    torch.testing.assert_close(features, io["z_embedding"], rtol=0, atol=1e-4)
    torch.testing.assert_close(token, io[f"{weights}.latent_token"], rtol=0, atol=3e-5)
    check(network, io["xt"], io[f"{weights}.logits_sigma0"], 3e-5, lam=io["z"])
    check_probabilities(model, io["xt"], io[f"{weights}.log_probs_sigma0"], latent=io["z"])
    if weights == "live":
        check(network, io["xt"], io["live.logits_sigma0_no_latent"], 3e-5)
    check(timed(model), io["xt"], io[f"{weights}.logits"], 3e-5, lam=io["z"], t=time_of(io["sigma"]))


def test_sdtt_student_loads_without_its_configuration(golden: Path, tmp_path: Path) -> None:
    """The released files come alone: everything but the length follows from the weights."""
    path = tmp_path / "sdtt7-di4c2.ckpt"
    path.write_bytes((golden / "sdtt_di4c_student" / "last.ckpt").read_bytes())
    io = load_file(golden / "sdtt_di4c_student" / "io.safetensors")
    model = load(str(path))
    assert model.config.kind == "student" and model.denoiser.length == 1024
    check(network_of(model), io["xt"], io["live.logits_sigma0"], 3e-5, lam=io["z"])


def maskgit_case(golden: Path, name: str) -> tuple[Model, Tensors, Tensor]:
    """The model, its inputs and outputs, and the labels with dropped ones as -1."""
    folder = golden / name
    io = load_file(folder / "io.safetensors")
    recorded = json.loads((folder / "hyper.json").read_text())
    options = {"codes": io["logits"].shape[-1] - 1, "heads": recorded["heads"]}
    labels = io["labels"].masked_fill(io["drop_label"].bool(), -1)
    return load(str(folder), **options), io, labels


def test_maskgit_teacher_gives_the_stored_outputs(golden: Path) -> None:
    model, io, labels = maskgit_case(golden, "maskgit")
    network, x = network_of(model), io["img_token"].flatten(1)
    check(network, x, io["logits"], 3e-5, label=labels)
    check(network, x, io["logits_drop_no"], 3e-5, label=io["labels"])
    check(network, x, io["logits_drop_all"], 3e-5, label=torch.full_like(labels, -1))
    check(network, x, io["logits_drop_none"], 3e-5, label=None)
    with torch.no_grad():
        t = torch.zeros(len(x))
        given = full_logits(network, network.body(x, t, io["labels"]))
        free = full_logits(network, network.body(x, t, None))
    guided = (1 + io["cfg.w"]) * given - io["cfg.w"] * free
    torch.testing.assert_close(guided, io["cfg.logits"], rtol=0, atol=3e-5 * (1 + 2 * float(io["cfg.w"])))


def test_maskgit_student_gives_the_stored_outputs(golden: Path) -> None:
    model, io, labels = maskgit_case(golden, "maskgit_di4c_student")
    network, x = network_of(model), io["img_token"].flatten(1)
    with torch.no_grad():
        features, token = network.latent_projection.features(io["z"]), network.latent_projection(io["z"])
    torch.testing.assert_close(features, io["z_embedding"], rtol=0, atol=1e-4)
    torch.testing.assert_close(token, io["latent_token"], rtol=0, atol=5e-5)
    check(network, x, io["logits"], 5e-5, label=labels, lam=io["z"])
    check(network, x, io["logits"], 5e-5, label=labels, lam=io["z"][:, 0])
    check(network, x, io["logits_no_z"], 5e-5, label=labels)
