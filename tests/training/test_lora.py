"""Students as adapters: shared weights, files in PEFT's conventions, merging, resuming, memory."""

from __future__ import annotations

import copy
import json
import shutil
from pathlib import Path

import pytest
import torch
import yaml
from safetensors.torch import load_file, save_file
from torch import nn

import di4c_cli
from di4c_cli import recipe_file
from di4c_cli.build import build_on_meta
from di4c_cli.errors import UserError
from di4c_cli.model import Model, load
from di4c_cli.network.lora import LoraLinear, add_lora, merged, targets, trained_state
from di4c_cli.network.lora_config import AdapterConfig
from di4c_cli.recipe import Recipe
from di4c_cli.teacher.convert import convert
from di4c_cli.teacher.registry import published_config
from di4c_cli.training.estimate import estimate, step_flops
from di4c_cli.training.plan import make_batch_plan
from di4c_cli.training.run import RunOptions, distill
from di4c_cli.training.student_init import adapter_student, student_config
from tests.helpers.small_run import make_teacher, run_cut, small_recipe


def adapter_recipe(teacher: Path, **overrides: object) -> Recipe:
    """The small Di4C recipe with an adapter of rank 2."""
    return small_recipe(teacher, training__adapter__rank=2, training__adapter__alpha=4.0, **overrides)


@pytest.fixture(scope="module")
def run(teacher: Path, tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A finished run of two rounds."""
    out = tmp_path_factory.mktemp("lora") / "run"
    distill(adapter_recipe(teacher, rounds=2), out, RunOptions())
    return out


def test_student_shares_every_frozen_weight_with_its_teacher(teacher: Path) -> None:
    model, recipe = load(str(teacher)), adapter_recipe(teacher)
    student = adapter_student(model.denoiser, student_config(model, recipe, 1), recipe, 1)
    theirs = dict(model.denoiser.network.named_parameters())
    for name, parameter in student.network.named_parameters():
        trained = "lora_" in name or name.startswith("latent_")
        assert parameter.requires_grad is trained
        assert trained or parameter is theirs[name]
    x = torch.full((2, 64), 8)
    assert not any(parameter.requires_grad for parameter in theirs.values())
    own = student.predict(x, torch.ones(2), None, torch.zeros(2)).dense()
    assert own.shape == (2, 64, 8) and bool(own.isfinite().all())


def test_folder_holds_the_adapter_in_the_names_of_peft_and_λ_alone(run: Path, teacher: Path) -> None:
    folder = run / "student"
    adapter, rest = load_file(folder / "adapter_model.safetensors"), load_file(folder / "model.safetensors")
    assert all(name.startswith("base_model.model.") and ".lora_" in name for name in adapter)
    assert rest and all(name.startswith("latent_") for name in rest)
    settings = json.loads((folder / "adapter_config.json").read_text())
    assert (settings["peft_type"], settings["r"], settings["lora_alpha"]) == ("LORA", 2, 4.0)
    layers = {name.removeprefix("base_model.model.").rsplit(".lora_", 1)[0] for name in adapter}
    assert (
        layers == set(settings["target_modules"]) == set(targets(load(str(teacher)).denoiser.network, AdapterConfig()))
    )


def test_loaded_student_equals_the_one_that_was_trained(run: Path, teacher: Path, tmp_path: Path) -> None:
    """The merged weights give the outputs of base and adapter; `convert` writes them as a whole model."""
    student, base = di4c_cli.load(str(run)), load(str(teacher)).denoiser.network
    assert student.config.adapter is not None
    x, t, lam = torch.full((3, 64), 8), torch.ones(3), torch.tensor([0.1, 0.5, 0.9])
    whole = student.log_probs(x, t, latent=lam)
    recipe = adapter_recipe(teacher)
    own = {
        name.removeprefix("base_model.model."): value
        for file in ("adapter_model", "model")
        for name, value in load_file(run / "student" / f"{file}.safetensors").items()
    }
    apart = adapter_student(load(str(teacher)).denoiser, student.config, recipe, 1, own)
    assert float((apart.predict(x, t, None, lam).dense().detach() - whole).abs().max()) < 1e-5
    changed = student.denoiser.network.state_dict()
    assert any(not torch.equal(changed[name], value) for name, value in base.state_dict().items())
    convert(str(run), tmp_path / "whole")
    again = load(str(tmp_path / "whole"))
    assert again.config.adapter is None
    assert torch.equal(again.log_probs(x, t, latent=lam), whole)


def test_adapter_asks_for_its_teacher_and_rejects_another(run: Path, teacher: Path, tmp_path: Path) -> None:
    folder = tmp_path / "student"
    folder.mkdir()
    for path in (run / "student").iterdir():
        (folder / path.name).write_bytes(path.read_bytes())
    config = json.loads((folder / "config.json").read_text())
    config["provenance"]["teacher"] = "somewhere"
    (folder / "config.json").write_text(json.dumps(config))
    with pytest.raises(UserError, match="adapter of 'somewhere'"):
        load(str(folder))
    assert load(str(folder), base=str(teacher)).config.adapter is not None
    other = make_teacher(tmp_path / "other")
    weights = load_file(other / "model.safetensors")
    save_file({name: value + 1 for name, value in weights.items()}, other / "model.safetensors")
    with pytest.raises(UserError, match="not the teacher"):
        load(str(folder), base=str(other))


def test_adapter_with_other_tensors_is_rejected(run: Path, teacher: Path, tmp_path: Path) -> None:
    """Another type or rank, a factor without the other, a factor beside λ, a weight of the base."""
    folder = Path(shutil.copytree(run / "student", tmp_path / "student"))
    files = {name: load_file(folder / f"{name}.safetensors") for name in ("adapter_model", "model")}
    first = next(name for name in files["adapter_model"] if ".lora_A." in name)
    layer = first.removeprefix("base_model.model.").removesuffix(".lora_A.weight")
    down = files["adapter_model"][first]
    for file, change in (
        ("adapter_model", {first: down.long()}),
        ("adapter_model", {first: down.to(torch.float8_e4m3fn)}),
        ("adapter_model", {first: down[:1]}),
        ("adapter_model", {first.replace("lora_A", "lora_C"): down.clone()}),
        ("adapter_model", {"latent_x.lora_A.weight": down + 1, "latent_x.lora_B.weight": down + 2}),
        ("adapter_model", {"x": down + 1}),
        ("model", {f"{layer}.weight": torch.zeros(2, 2)}),
    ):
        save_file(files[file] | change, folder / f"{file}.safetensors")
        with pytest.raises(UserError, match="does not fit its teacher"):
            load(str(folder), base=str(teacher))
        save_file(files[file], folder / f"{file}.safetensors")


def test_adapter_of_an_adapter_is_rejected(run: Path, tmp_path: Path) -> None:
    """Also one whose recipe and history name itself, which would be read without end."""
    with pytest.raises(UserError, match="needs a whole model"):
        load(str(run), base=str(run))
    copied = Path(shutil.copytree(run, tmp_path / "run"))
    recipe, config = copied / "recipe.yaml", copied / "student" / "config.json"
    recipe.write_text(yaml.safe_dump(yaml.safe_load(recipe.read_text()) | {"teacher": str(copied / "student")}))
    tree = json.loads(config.read_text())
    tree["provenance"]["teacher"] = "student"
    config.write_text(json.dumps(tree))
    with pytest.raises(UserError, match="needs a whole model"):
        load(str(copied))


@pytest.mark.slow
def test_stopped_run_resumes_bit_for_bit(teacher: Path, tmp_path: Path) -> None:
    recipe = adapter_recipe(teacher)
    distill(recipe, tmp_path / "whole", RunOptions())
    run_cut(recipe, tmp_path / "cut", (1, 4))
    for file in ("adapter_model.safetensors", "model.safetensors"):
        one, other = (load_file(tmp_path / name / "student" / file) for name in ("whole", "cut"))
        assert one.keys() == other.keys() and all(torch.equal(one[name], other[name]) for name in one)


def test_adapter_of_full_rank_takes_the_step_of_full_training() -> None:
    """With A = 1 and scale 1 the first gradient step of B moves W + B A as training W itself does."""
    torch.manual_seed(0)
    plain = nn.Sequential(nn.Linear(6, 6), nn.Tanh(), nn.Linear(6, 6)).double()
    tuned = copy.deepcopy(plain)
    add_lora(tuned, AdapterConfig(rank=6, alpha=6.0))
    x = torch.randn(5, 6, dtype=torch.float64)
    for layer in tuned:
        if isinstance(layer, LoraLinear):
            layer.lora_A.weight.data = torch.eye(6, dtype=torch.float64)
    for network in (plain, tuned):
        network(x).square().sum().backward()
        with torch.no_grad():
            for parameter in network.parameters():
                if parameter.grad is not None and parameter.dim() == 2:
                    parameter -= 0.01 * parameter.grad
    own = {name: value for name, value in trained_state(tuned).items() if "lora_" in name}
    base = {name: value for name, value in tuned.state_dict().items() if "lora_" not in name}
    whole = merged(base, own, AdapterConfig(rank=6, alpha=6.0))
    assert all(torch.allclose(whole[name], value, atol=1e-6) for name, value in plain.state_dict().items())


def test_estimate_counts_the_shared_weights_once(teacher: Path) -> None:
    model, full, small = load(str(teacher)), small_recipe(teacher), adapter_recipe(teacher)
    sizes = [
        estimate(student_config(model, recipe, 1), model.config, recipe, make_batch_plan(4, 2, 1))
        for recipe in (full, small)
    ]
    base = sum(parameter.numel() for parameter in model.denoiser.network.parameters()) * 4
    assert sizes[1].teacher == sizes[0].teacher == base
    recipe = adapter_recipe(teacher)
    student = adapter_student(model.denoiser, student_config(model, recipe, 1), recipe, 1)
    trained = sum(value.numel() for value in trained_state(student.network).values()) * 4
    assert (sizes[1].gradients, sizes[1].ema, sizes[1].optimizer) == (trained, trained, 2 * trained)


def test_estimate_of_8_billion_weights_follows_from_its_parts() -> None:
    """LLaDA-8B: 4 or 2 bytes a weight; copies of autocast only for the block at work."""
    sizes = {}
    for base in ("fp32", "bf16"):
        settings = {"training.adapter.base_precision": base, "training.activation_checkpointing": True}
        recipe = recipe_file.read("masked-lm", {"teacher": "llada-8b", **settings})
        config = published_config("llada-8b")
        assert isinstance(recipe, Recipe) and config is not None
        student = student_config(Model(config, build_on_meta(config)), recipe, 1)
        plan = make_batch_plan(recipe.training.batch, None, 1)
        sizes[base] = estimate(student, config, recipe, plan)
        flops = step_flops(config, recipe, plan)
        linear = 8_014_639_104 - 126_349 * 4096 - 65 * 4096
        assert flops == 2 * 2 * (1 + 4 * 4) * 1024 * linear
    assert (sizes["fp32"].teacher, sizes["bf16"].teacher) == (4 * 8_014_639_104, 2 * 8_014_639_104)
    copies = sizes["fp32"].weights - sizes["bf16"].weights
    assert copies == pytest.approx(2 * linear / 32, rel=0.01)
    assert sizes["fp32"].total < 46 * 2**30 and sizes["bf16"].total < 22 * 2**30


@pytest.mark.parametrize(("names", "words"), [(["nothing"], "no linear layer 'nothing'"), (["token_emb"], "no linear")])
def test_unknown_targets_are_rejected(teacher: Path, names: list[str], words: str) -> None:
    with pytest.raises(UserError, match=words):
        targets(load(str(teacher)).denoiser.network, AdapterConfig(targets=names))


def test_half_base_needs_autocast(teacher: Path) -> None:
    found = adapter_recipe(teacher), adapter_recipe(teacher, training__precision="bf16")
    assert [one.training.adapter.base_precision for one in found] == ["fp32", "bf16"]
    with pytest.raises(UserError, match="precision bf16"):
        adapter_recipe(teacher, training__adapter__base_precision="bf16")


@pytest.mark.parametrize("name", ["digits", "words", "pixels"])
def test_adapter_of_every_network_trains_under_bf16(name: str, tmp_path: Path) -> None:
    settings = {"teacher": name, "data": "embedded", "training.adapter.type": "lora", "training.precision": "bf16"}
    recipe = recipe_file.read(f"di4c/{name}", settings | {"training.iterations": 1, "training.batch": 2})
    distill(recipe, tmp_path / "run", RunOptions())
    assert (tmp_path / "run" / "student" / "adapter_model.safetensors").is_file()
