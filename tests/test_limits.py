"""Absurd and contradictory configurations are rejected before anything is built from them."""

from __future__ import annotations

import json
import os
import subprocess
import sys
import time
from pathlib import Path
from typing import Any

import pytest
import torch

from di4c_cli import limits, model_folder, recipe_file, schema
from di4c_cli.build import assemble, build_denoiser
from di4c_cli.codec.vq import build_vqgan_on_meta
from di4c_cli.config import ModelConfig
from di4c_cli.errors import UserError
from di4c_cli.sampler.plan import check_ranges
from tests.helpers.faults import call

NETWORKS: dict[str, dict[str, Any]] = {
    "maskgit": {"symbols": 5, "length": 4, "width": 8, "depth": 2, "heads": 2, "mlp": 8},
    "dit": {"symbols": 5, "length": 4, "width": 8, "depth": 2, "heads": 2, "cond_dim": 4},
    "unet": {
        "symbols": 6,
        "shape": [1, 4, 4],
        "channels": 8,
        "multipliers": [1, 1],
        "blocks": 1,
        "attention": 1,
        "time_dim": 8,
    },
    "llama": {
        **{"symbols": 5, "length": 4, "width": 8, "depth": 2, "heads": 2, "mlp": 8, "kv_heads": 1, "head_width": 4},
        **{"rope_base": 1e4, "eps": 1e-6, "qkv_bias": True, "qk_norm": True, "tied": False, "shift": True},
    },
    "bert": {
        **{"symbols": 5, "length": 4, "width": 8, "depth": 2, "heads": 2, "mlp": 8, "positions": "counted"},
        **{"padding": 1, "pre_norm": False, "token_dropout": True, "activation": "relu", "eps": 1e-12, "tied": True},
    },
    "uniform": {"symbols": 5, "length": 4, "width": 8, "depth": 2, "heads": 2, "cond_dim": 4, "mask": False},
}
PROCESSES = {"unet": "gaussian", "uniform": "uniform"}
"""Of the networks that are not masked."""


def config_of(kind: str) -> dict[str, Any]:
    process = {"type": PROCESSES.get(kind, "masked"), "symbols": NETWORKS[kind]["symbols"]}
    network = {"type": "dit" if kind == "uniform" else kind, **NETWORKS[kind]}
    return {"kind": "teacher", "name": "x", "network": network, "process": process}


@pytest.fixture(params=NETWORKS)
def folder(request: pytest.FixtureRequest, tmp_path: Path) -> Path:
    """A sound model folder of each kind of network."""
    config = ModelConfig.model_validate(config_of(request.param))
    model_folder.save_folder(tmp_path / "model", config, build_denoiser(config), "card")
    return tmp_path / "model"


ABSURD = [10**9, 10**18, 0, -1, 2.5, "many", None, [], {}, True, float("inf"), float("nan")]


@pytest.mark.parametrize("value", ABSURD, ids=str)
def test_limits_handle_every_absurd_number(folder: Path, value: Any) -> None:
    """Whatever number is made absurd: one sentence within seconds, or a model that works."""
    tree = json.loads((folder / "config.json").read_text())
    for part in ("network", "process"):
        for key in list(tree[part]):
            changed = json.loads(json.dumps(tree))
            changed[part][key] = value
            (folder / "config.json").write_text(json.dumps(changed))
            started = time.process_time()
            try:
                _, denoiser, _ = model_folder.load_folder(folder)
            except UserError as error:
                assert "\n" not in str(error)
            else:
                x = torch.zeros(1, denoiser.length, dtype=torch.long)
                assert not denoiser.predict(x, torch.tensor([0.5])).dense().isnan().any()
            assert time.process_time() - started < 5


@pytest.mark.parametrize(
    ("change", "told"),
    [
        ({"network.depth": 10**9}, "network.depth"),
        ({"network.depth": 4000}, "too few for the 4000 layers"),
        ({"network.dropout": "0.1"}, "network.dropout"),
        ({"network.time_conditioning": "no"}, "network.time_conditioning"),
        ({"network.symbols": 7}, "7 symbols but the process 5"),
        ({"labels": 3}, "claims 3 labels"),
        ({"network.length": 2**19}, "beyond any model"),
        ({"network.length": 2**18, "latent": {"inject": "local", "dim": 4096}}, "4096 numbers at every position"),
        ({"sampling.steps": 10**7}, "sampling.steps: .*65536"),
        ({"network.type": "resnet"}, "unknown"),
        ({"process.type": "magic"}, "unknown"),
        ({"process.scheduel": "linear"}, "process settings are impossible"),
        ({"di4c": 99}, "newer di4c"),
        ({"kind": "pupil"}, "kind"),
        ({"codec": {"type": "pixels", "levels": 8}}, "image shape or number of levels"),
        ({"network.width": 12}, "does not fit the network"),
    ],
)
def test_limits_explain_each_problem(tmp_path: Path, change: dict[str, Any], told: str) -> None:
    config = ModelConfig.model_validate(config_of("maskgit"))
    model_folder.save_folder(tmp_path / "model", config, build_denoiser(config), "card")
    path = tmp_path / "model" / "config.json"
    tree = json.loads(path.read_text())
    for dotted, value in change.items():
        *parents, key = dotted.split(".")
        node = tree
        for parent in parents:
            node = node[parent]
        node[key] = value
    path.write_text(json.dumps(tree))
    with pytest.raises(UserError, match=told):
        model_folder.load_folder(tmp_path / "model")


def test_assemble_rejects_missing_latent_parts() -> None:
    """A teacher's weights do not fill a student's network."""
    teacher = ModelConfig.model_validate(config_of("dit"))
    weights = build_denoiser(teacher).network.state_dict()
    pupil = ModelConfig.model_validate(config_of("dit") | {"kind": "student", "latent": {"inject": "token"}})
    assert assemble(teacher, weights, "teacher")[1].counts == {"matched": len(weights)}
    with pytest.raises(UserError, match="lacks 'latent_projection"):
        assemble(pupil, weights, "teacher")


VQGAN = {"channels": 32, "multipliers": [1, 2], "blocks": 1, "attention_resolutions": [7], "z_channels": 16}
VQGAN |= {"embed_dim": 8, "codes": 64, "resolution": 28, "in_channels": 1, "out_channels": 1}


@pytest.mark.parametrize(
    ("key", "value", "told"),
    [
        ("multipliers", 7, "codec.vqgan.multipliers"),
        ("multipliers", [1] * 13, "at most 12"),
        ("blocks", [1], "codec.vqgan.blocks"),
        ("blocks", 10**9, "codec.vqgan.blocks"),
        ("attention_resolutions", "7", "codec.vqgan.attention_resolutions"),
        ("codes", True, "codec.vqgan.codes"),
        ("resolution", 29, "must be a multiple of 2"),
        ("channels", 33, "must be multiples of 32"),
        ("wheels", 4, "wheels"),
    ],
)
def test_limits_reject_a_strange_vqgan(key: str, value: Any, told: str) -> None:
    assert build_vqgan_on_meta({"type": "vqgan", **VQGAN}).resolution == 28
    with pytest.raises(UserError, match=told):
        build_vqgan_on_meta({"type": "vqgan", **VQGAN, key: value})


def test_process_limit_follows_the_devices() -> None:
    """32 processes on 32 cores, 8 on 8 GPUs; more per core only on request."""
    assert limits.process_limit(32) == 32 and limits.process_limit(8) == 8
    assert limits.process_limit(2, oversubscribe=True) == 16 and limits.process_limit(1) == 1


def test_limits_allow_large_but_legitimate_requests(monkeypatch: pytest.MonkeyPatch) -> None:
    """A million images, 50 000 samples, long runs of large batches, published sizes on a machine of 32 GB."""
    assert schema.MAX_SAMPLES >= 1_000_000 and schema.MAX_STEPS >= 4096
    for steps in (1, 1024, 4096):
        check_ranges({"steps": steps, "corrector": 10, "tile": 256})
    large = {"training.iterations": 10_000_000, "training.batch": 65536, "training.synthetic_pool": 1_000_000}
    recipe_file.read("di4c/digits", large)
    monkeypatch.setattr(limits, "physical_memory", lambda: 32 * 2**30)
    limits.check_sampling_memory(512, 1024, 768)
    limits.check_sampling_memory(4096, 256, 768)
    with pytest.raises(UserError, match=r"needs about 18432 GB, and this machine has 32 GB.*--batch-size 1820"):
        limits.check_sampling_memory(2**20, 2**11, 768)


@pytest.mark.parametrize(
    ("words", "limit"),
    [
        (["sample", "--steps", "10000000"], "65536"),
        (["sample", "-n", "99999999999"], "10000000"),
        (["sample", "--batch-size", "99999999999"], "1048576"),
        (["sample", "--corrector", "99999999"], "10000"),
        (["sample", "--tile", "99999999"], "4096"),
        (["sample", "--seed", "9" * 30], "9223372036854775807"),
        (["eval", "--steps", "1,10000000"], "65536"),
        (["eval", "-n", "99999999999"], "10000000"),
        (["eval", "--repeats", "99999999"], "1000"),
        (["bench-latency", "--threads", "99999999"], "1024"),
        (["distill", "--batch", "99999999999"], "1048576"),
        (["distill", "--iterations", "99999999999"], "1000000000"),
        (["distill", "--set", "method.encoder_width=99999999"], "4096"),
        (["distill", "-r", "di4c/digits", "--set", "method.reference_steps=99999999"], "65536"),
        (["distill", "--set", "training.adapter={rank: 99999999}"], "16384"),
        (["distill", "--set", "training.workers=99999999"], "1024"),
        (["distill", "-r", "sdtt/digits", "--set", "method.teacher_steps=99999999"], "64"),
        (["distill", "-r", "moment_matching/digits", "--set", "method.steps=[99999999]"], "65536"),
        (["sweep", "ablations/alpha", "--samples", "99999999999"], "10000000"),
        (["sample", "--processes", "99999999"], "processes"),
        (["eval", "--processes", "99999999"], "processes"),
        (["sweep", "ablations/alpha", "--processes", "99999999"], "processes"),
        (["distill", "--processes", "99999999"], "processes"),
        (["distill", "--processes", "99999999", "--oversubscribe", "--dry-run"], "processes"),
    ],
)
def test_commands_name_the_limit_of_a_number(words: list[str], limit: str, tmp_path: Path) -> None:
    result = call(*words)
    assert result.exit_code == 2 and limit in "".join(result.stderr.split("\n")), result.stderr


def test_infill_counts_its_markers_before_it_makes_them() -> None:
    from di4c_cli.codec import build
    from di4c_cli.generate.prompt import infill

    with pytest.raises(UserError, match="99999900 free positions but the model has 4"):
        infill(build({"type": "none"}), "[MASK*999999]" * 100, 4, 5)


def test_training_step_beyond_the_memory_is_rejected(monkeypatch: pytest.MonkeyPatch) -> None:
    from di4c_cli.training import estimate

    memory = estimate.Memory(weights=2**40, teacher=0, gradients=0, optimizer=0, ema=0, activations=0, loss_chunk=0)
    with pytest.raises(UserError, match="needs about 1024 GB"):
        monkeypatch.setattr(estimate, "physical_memory", lambda: 2**35)
        estimate.check_memory(memory)
    monkeypatch.setattr(estimate, "physical_memory", lambda: 2**41)
    estimate.check_memory(memory)


def test_pretraining_step_beyond_the_memory_is_rejected(tmp_path: Path) -> None:
    flags = ("--recipe", "pretrain/digits", "--set", f"training.batch={schema.MAX_BATCH}")
    result = call("pretrain", *flags, "--out", str(tmp_path / "run"))
    assert result.exit_code == 2 and "A training step needs about" in result.stderr, result.stderr
    assert not (tmp_path / "run").exists()


def test_check_threads_follows_the_cores(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(os, "cpu_count", lambda: 4)
    limits.check_threads(32)
    with pytest.raises(UserError, match="Use 32 or fewer"):
        limits.check_threads(1000)


def test_available_memory_follows_the_limits_of_the_process() -> None:
    script = (
        "import resource, torch; from di4c_cli.training.estimate import available; import psutil; "
        "now = psutil.Process().memory_info().vms; resource.setrlimit(resource.RLIMIT_AS, (now + 2**30,) * 2); "
        "print(available(torch.device('cpu')))"
    )
    done = subprocess.run([sys.executable, "-c", script], capture_output=True, text=True, check=True)
    assert 0 < int(done.stdout) <= 2**30
