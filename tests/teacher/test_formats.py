"""Formats are detected by content, the report covers every tensor, and converting keeps every bit."""

from __future__ import annotations

import shutil
from pathlib import Path
from typing import Any

import pytest
import torch
from safetensors.torch import load_file, save_file

from di4c_cli import load
from di4c_cli.errors import UserError
from di4c_cli.model import Model
from di4c_cli.teacher import read, recipe_for, safe
from di4c_cli.teacher.convert import convert

CASES: dict[str, tuple[str, dict[str, Any]]] = {
    "sdtt": ("sdtt", {}),
    "mdlm": ("mdlm", {}),
    "sdtt-student": ("sdtt_di4c_student/last.ckpt", {"weights": "ema"}),
    "maskgit": ("maskgit", {"heads": 4, "codes": 40}),
    "maskgit-student": ("maskgit_di4c_student/current.pth", {"heads": 4, "codes": 40}),
    "tauldr": ("tauldr/teacher", {}),
    "tauldr-student": ("tauldr/di4c_student/checkpoints/ckpt_0000159999.pt", {"weights": "live"}),
}


def outputs(model: Model) -> torch.Tensor:
    """log-probabilities on fixed inputs: all kinds of symbols, some of them masked, given labels and λ."""
    generator = torch.Generator().manual_seed(0)
    x = torch.randint(0, model.denoiser.process.states, (3, model.denoiser.length), generator=generator)
    label = None if not model.config.labels else torch.tensor([0, 1, -1])
    return model.log_probs(x, torch.tensor([0.9, 0.5, 0.1]), label, seed=3)


@pytest.mark.slow
@pytest.mark.parametrize("case", CASES)
def test_convert_keeps_every_bit(golden: Path, tmp_path: Path, case: str) -> None:
    path, options = CASES[case]
    original = load(str(golden / path), **options)
    convert(str(golden / path), tmp_path / "out", **options)
    converted = load(str(tmp_path / "out"))
    assert torch.equal(outputs(original), outputs(converted))
    assert converted.config.kind == ("student" if case.endswith("student") else "teacher")
    assert converted.load_report is not None and set(converted.load_report.counts) == {"matched"}
    again = load(str(tmp_path / "out" / "model.safetensors"))
    assert torch.equal(outputs(converted), outputs(again))


def test_formats_do_not_depend_on_file_names(golden: Path, tmp_path: Path) -> None:
    shutil.copy(golden / "sdtt" / "model.safetensors", tmp_path / "weights.bin")
    shutil.copy(golden / "sdtt" / "config.json", tmp_path / "settings.txt")
    assert load(str(tmp_path)).config.provenance["format"] == "sdtt"
    shutil.copy(golden / "maskgit" / "MaskGIT_ImageNet_256.pth", tmp_path / "model.safetensors")
    bundle = read(str(tmp_path / "model.safetensors"), heads=4, codes=40)
    assert bundle.config.provenance["format"] == "maskgit"


def test_load_reads_the_named_file(golden: Path, tmp_path: Path) -> None:
    """A foreign checkpoint, or other weights, beside a folder of our own."""
    convert(str(golden / "sdtt"), tmp_path / "out")
    shutil.copy(golden / "maskgit" / "MaskGIT_ImageNet_256.pth", tmp_path / "out" / "x.pth")
    assert load(str(tmp_path / "out" / "x.pth"), heads=4, codes=40).config.network["type"] == "maskgit"
    tensors = load_file(tmp_path / "out" / "model.safetensors")
    save_file({name: 2 * tensor for name, tensor in tensors.items()}, tmp_path / "out" / "other.safetensors")
    weight = load(str(tmp_path / "out" / "other.safetensors")).denoiser.network.get_parameter(
        "output_layer.linear.bias"
    )
    assert torch.equal(weight, 2 * tensors["output_layer.linear.bias"])


def test_kind_of_tells_safetensors_from_pickles(tmp_path: Path) -> None:
    """The first bytes of safetensors are a length, which may be the first bytes of a pickle."""
    path = tmp_path / "model"
    for filler in range(500):
        save_file({"a": torch.ones(3)}, path, {"filler": "x" * filler})
        if path.read_bytes()[:2] == b"\x80\x01":
            break
    assert path.read_bytes()[:2] == b"\x80\x01" and safe.kind_of(path) == "safetensors"


def test_maskgit_loads_its_vqgan_and_decodes(golden: Path, tmp_path: Path) -> None:
    io = load_file(golden / "vqgan" / "io.safetensors")
    model = load(str(golden / "maskgit"), heads=4, vqgan=str(golden / "vqgan"))
    assert model.config.network["symbols"] == 40 and model.config.network["labels"] == 7
    pictures = model.decode(io["codes_in"].flatten(1))
    expected = ((io["decoded"] + 1) * 127.5).round().clamp(0, 255).byte().permute(0, 2, 3, 1).numpy()
    assert abs(pictures.astype(int) - expected.astype(int)).max() <= 1
    convert(str(golden / "vqgan"), tmp_path / "vqgan")
    convert(str(golden / "maskgit"), tmp_path / "both", heads=4, vqgan=str(tmp_path / "vqgan"))
    assert (load(str(tmp_path / "both")).decode(io["codes_in"].flatten(1)) == pictures).all()


def test_vqgan_serves_two_resolutions(golden: Path) -> None:
    """MaskGIT at 512 pixels uses the tokenizer of 256: twice the side, attention at the same level."""
    from di4c_cli.codec.vq import assemble
    from di4c_cli.teacher.formats import vqgan
    from di4c_cli.teacher.model_files import ModelFiles

    small = vqgan.read(ModelFiles.at(golden / "vqgan"))
    large = small.at_length(64)
    assert large.settings["resolution"] == 32 and large.settings["attention_resolutions"] == [8]
    assert assemble(large.tensors, large.settings).decode(torch.zeros(1, 64, dtype=torch.long)).shape[-1] == 32


def test_load_rejects_a_tokenizer_as_teacher(golden: Path) -> None:
    with pytest.raises(UserError, match="image tokenizer"):
        load(str(golden / "vqgan"))


def test_load_asks_for_what_a_file_does_not_record(golden: Path) -> None:
    with pytest.raises(UserError, match="--heads"):
        load(str(golden / "maskgit"), codes=40)
    with pytest.raises(UserError, match="--codes"):
        load(str(golden / "maskgit"), heads=4)
    with pytest.raises(UserError, match="no 'best' weights"):
        load(str(golden / "maskgit"), weights="best")
    with pytest.raises(UserError, match="no option 'head'"):
        load(str(golden / "maskgit"), head=4)


def test_load_report_of_a_foreign_file(golden: Path) -> None:
    report = load(str(golden / "sdtt_di4c_student"), weights="ema").load_report
    assert report is not None and report.counts == {"renamed": 35, "unused": 8}
    text = "\n".join(report.lines())
    assert "backbone.latent_projection.0.weight" in text and "optimizer_states" in text
    assert text.endswith("43 tensors: 35 renamed, 8 unused.")


def test_load_rejects_missing_and_misshapen_tensors(golden: Path, tmp_path: Path) -> None:
    shutil.copy(golden / "sdtt" / "config.json", tmp_path / "config.json")
    tensors = load_file(golden / "sdtt" / "model.safetensors")
    broken = {name: tensor for name, tensor in tensors.items() if not name.endswith("attn_out.weight")}
    save_file(broken, tmp_path / "model.safetensors")
    with pytest.raises(UserError, match=r"lacks 'blocks.0.attn_out.weight' .2 missing"):
        load(str(tmp_path))
    broken = tensors | {"backbone.blocks.0.norm1.weight": torch.ones(7)}
    save_file(broken, tmp_path / "model.safetensors")
    with pytest.raises(UserError, match="7 in the file where the network needs 48"):
        load(str(tmp_path))
    save_file(tensors | {"backbone.extra": torch.ones(1)}, tmp_path / "model.safetensors")
    with pytest.raises(UserError, match="holds 'extra', which the network does not have"):
        load(str(tmp_path))


def test_load_rejects_a_configuration_of_another_model(golden: Path, tmp_path: Path) -> None:
    text = (golden / "sdtt" / "config.json").read_text().replace('"n_blocks": 2', '"n_blocks": 12')
    (tmp_path / "config.json").write_text(text)
    shutil.copy(golden / "sdtt" / "model.safetensors", tmp_path)
    with pytest.raises(UserError, match="says depth 12, the weights say 2"):
        load(str(tmp_path))


def test_load_rejects_several_models_in_a_folder(golden: Path, tmp_path: Path) -> None:
    for name in ("a.pth", "b.pth"):
        shutil.copy(golden / "maskgit" / "MaskGIT_ImageNet_256.pth", tmp_path / name)
    with pytest.raises(UserError, match=r"several models .a.pth, b.pth"):
        load(str(tmp_path), heads=4, codes=40)


def test_load_takes_a_configuration_elsewhere(golden: Path, tmp_path: Path) -> None:
    shutil.copy(golden / "tauldr" / "teacher" / "checkpoints" / "ckpt_0001999999.pt", tmp_path / "x.pt")
    with pytest.raises(UserError, match="does not fit the network"):
        load(str(tmp_path / "x.pt"))  # without a configuration it is taken for the published one
    config = golden / "tauldr" / "teacher" / "config" / "config_001.yaml"
    model = load(str(tmp_path / "x.pt"), config=str(config))
    assert torch.equal(outputs(model), outputs(load(str(golden / "tauldr" / "teacher"))))


def test_pickles_of_early_lightning_load(golden: Path, tmp_path: Path) -> None:
    """Their callbacks are keyed by class: the class is not imported, the entry is ignored."""
    tree = torch.load(golden / "vqgan" / "last.ckpt", weights_only=True)
    marker = type("ModelCheckpoint", (), {"__module__": "pytorch_lightning.callbacks.model_checkpoint"})
    import sys
    import types

    module = types.ModuleType("pytorch_lightning.callbacks.model_checkpoint")
    module.ModelCheckpoint = marker  # type: ignore[attr-defined]
    for name in ("pytorch_lightning", "pytorch_lightning.callbacks"):
        sys.modules[name] = types.ModuleType(name)
    sys.modules[module.__name__] = module
    try:
        torch.save(tree | {"callbacks": {marker: {"best_model_score": 1.0}}}, tmp_path / "last.ckpt")
    finally:
        for name in ("pytorch_lightning", "pytorch_lightning.callbacks", module.__name__):
            del sys.modules[name]
    shutil.copy(golden / "vqgan" / "model.yaml", tmp_path)
    model = load(str(golden / "maskgit"), heads=4, vqgan=str(tmp_path))
    assert model.config.codec["type"] == "vq"


def test_recipe_for_paths(golden: Path) -> None:
    assert recipe_for(str(golden / "sdtt")) == "sdtt-7"
    assert recipe_for(str(golden / "maskgit")) == "maskgit-imagenet256"
    assert recipe_for(str(golden / "tauldr" / "teacher")) == "tauldr-cifar10"
