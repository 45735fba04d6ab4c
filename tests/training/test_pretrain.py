"""Pretraining on the ordinary training loop: refusals before anything is written, best weights, resuming, processes."""

from __future__ import annotations

import json
import os
import signal
from pathlib import Path
from typing import Any

import pytest
import torch
from safetensors.torch import load_file

import di4c_cli
from di4c_cli import recipe_file
from di4c_cli.errors import Failure, UserError
from di4c_cli.training.checkpoint import Progress
from di4c_cli.training.metrics import read_rows
from di4c_cli.training.pretrain_config import PretrainConfig
from di4c_cli.training.processes import Stopped
from di4c_cli.training.run import RunOptions, pretrain
from tests.helpers.small_run import run, run_cut, same

SMALL = {
    "training.iterations": 6,
    "training.batch": 4,
    "training.checkpoint_every": 4,
    "training.optimizer.warmup": 0,
    "evaluate_every": 2,
    "network.width": 16,
    "network.depth": 1,
    "network.mlp": 32,
}


def recipe(name: str = "pretrain/digits", **changes: Any) -> PretrainConfig:
    return recipe_file.read_pretrain(name, SMALL | {key.replace("__", "."): v for key, v in changes.items()})


def last_state(out: Path) -> dict[str, Any]:
    return json.loads(max((out / "round-1" / "checkpoints").glob("step-*/state.json")).read_text())


@pytest.mark.parametrize(
    ("changes", "told"),
    [
        ({"network__widht": 8}, r"The recipe pretrain/digits: .*widht.*in the recipe"),
        ({"network__depth": "three"}, "depth"),
        ({"network__length": 65}, "65 positions"),
        ({"network__symbols": 4, "process__symbols": 4}, "4 symbols"),
        ({"network__type": "mlp"}, "mlp"),
        ({"codec__shape": "wide"}, "image shape"),
        ({"process__shedule": "linear"}, "shedule"),
        ({"task": None}, "names no data"),
        ({"data": "nowhere"}, "no data at 'nowhere'"),
    ],
)
def test_pretrain_rejects_a_bad_recipe_before_any_training(tmp_path: Path, changes: dict[str, Any], told: str) -> None:
    with pytest.raises(UserError, match=told):
        pretrain(recipe(**changes), tmp_path / "out", RunOptions())
    assert not (tmp_path / "out").exists()


@pytest.mark.parametrize(
    ("changes", "told"),
    [
        ({"data": "teacher"}, "no teacher"),
        ({"training__synthetic_share": 0.5}, "no teacher"),
        ({"time_low": 0.1}, "time_low is now method.time.low"),
        ({"vocabulary": 200}, "vocabulary"),
    ],
)
def test_pretrain_recipe_rejects_impossible_keys(changes: dict[str, Any], told: str) -> None:
    with pytest.raises(UserError, match=told):
        recipe(**changes)


def test_pretrain_writes_the_best_teacher(tmp_path: Path) -> None:
    pretrain(recipe(training__sample_every=3), tmp_path / "run", RunOptions())
    rows = read_rows(tmp_path / "run" / "metrics.jsonl")
    assert [row["step"] for row in rows] == [1, 2, 3, 4, 5, 6]
    assert [row["step"] for row in rows if "held_out" in row] == [2, 4, 6]
    best = min((row for row in rows if "held_out" in row), key=lambda row: row["held_out"])
    model = di4c_cli.load(str(tmp_path / "run"))
    assert (model.config.kind, model.name) == ("teacher", "digits")
    assert model.config.provenance["iterations"] == best["step"]
    assert model.config.provenance["held_out_loss"] == best["held_out"]
    assert model.decode(model.sample(2, steps=2, label=3)).shape == (2, 8, 8)
    assert sorted(path.name for path in (tmp_path / "run").iterdir()) == [
        *("curves.png", "metrics.jsonl", "recipe.yaml", "round-1", "samples", "teacher")
    ]
    assert pretrain(recipe(training__sample_every=3), tmp_path / "run", RunOptions()).already_finished


def test_pretrain_weights_are_those_of_the_best_evaluation(tmp_path: Path) -> None:
    """A learning rate that is far too high: the first evaluation stays the best one, and patience ends the run."""
    settings = recipe(
        training__iterations=40,
        training__ema=0.0,
        training__optimizer__lr=3.0,
        training__optimizer__decay="none",
        evaluate_every=1,
        patience=3,
    )
    pretrain(settings, tmp_path, RunOptions())
    state, rows = last_state(tmp_path), read_rows(tmp_path / "metrics.jsonl")
    assert state["stale"] == 3 and state["step"] == len(rows) == state["best_step"] + 3 < 40
    short = settings.model_copy(deep=True)
    short.training.iterations = state["best_step"]
    pretrain(short, tmp_path / "short", RunOptions())
    assert same(*(load_file(folder / "teacher" / "model.safetensors") for folder in (tmp_path, tmp_path / "short")))


def test_progress_counts_evaluations_without_improvement() -> None:
    progress = Progress(round=1)
    found = []
    for progress.step, loss in enumerate((3.0, 2.0, 2.0, None, 2.5), 1):
        found.append(progress.evaluated(loss))
    assert found == [True, True, False, False, False]
    assert (progress.best_loss, progress.best_step, progress.stale) == (2.0, 2, 3)


def test_resumed_pretrain_ends_with_the_same_bits(tmp_path: Path) -> None:
    settings = recipe(network__dropout=0.1, training__iterations=9, training__checkpoint_every=3)
    run_cut(settings, tmp_path / "one")
    run_cut(settings, tmp_path / "cut", (1, 2), (1, 5), (1, 6))
    assert same(*(load_file(tmp_path / name / "teacher" / "model.safetensors") for name in ("one", "cut")))
    last = Path("round-1", "checkpoints", "step-00000009")
    for file in ("model", "ema", "best"):
        assert same(*(load_file(tmp_path / name / last / f"{file}.safetensors") for name in ("one", "cut"))), file
    states = [last_state(tmp_path / name) for name in ("one", "cut")]
    rows = [read_rows(tmp_path / name / "metrics.jsonl") for name in ("one", "cut")]
    for row in [*states, *rows[0], *rows[1]]:
        row.pop("seconds")
    assert states[0] == states[1] and rows[0] == rows[1]


def test_pretrain_folder_of_another_recipe_is_refused(tmp_path: Path) -> None:
    pretrain(recipe(), tmp_path, RunOptions())
    with pytest.raises(UserError, match="seed: 0 there, 1 asked"):
        pretrain(recipe(seed=1), tmp_path, RunOptions())


def test_pretrain_starts_from_the_seed(tmp_path: Path) -> None:
    for seed in (0, 1):
        settings = recipe(seed=seed, training__iterations=1)
        pretrain(settings, tmp_path / str(seed), RunOptions())
        torch.rand(1)  # the state of the global generator does not matter
        pretrain(settings, tmp_path / f"{seed} again", RunOptions())
    weights = {path.name: load_file(path / "teacher" / "model.safetensors") for path in tmp_path.iterdir()}
    assert same(weights["0"], weights["0 again"]) and same(weights["1"], weights["1 again"])
    assert not same(weights["0"], weights["1"])


@pytest.mark.slow
def test_pretrain_with_two_processes_gives_the_losses_of_one(tmp_path: Path) -> None:
    flags = [part for key, value in SMALL.items() for part in ("--set", f"{key}={value}")]
    flags += ["--set", "training.iterations=2"]
    for name, more in (("one", []), ("two", ["--processes", "2"])):
        code, said = run(["pretrain", *flags, "--out", str(tmp_path / name), *more])
        assert code == 0, said
    one, two = (read_rows(tmp_path / name / "metrics.jsonl") for name in ("one", "two"))
    for key in ("loss", "grad_norm"):
        assert [row[key] for row in two] == pytest.approx([row[key] for row in one], rel=1e-4)
    assert two[1]["held_out"] == pytest.approx(one[1]["held_out"], rel=1e-4)


def test_stopped_pretrain_says_how_to_resume(tmp_path: Path) -> None:
    def stop(row: dict[str, Any]) -> None:
        os.kill(os.getpid(), signal.SIGTERM)

    with pytest.raises(Stopped, match="Stopped after step 1 of 6"):
        pretrain(recipe(), tmp_path, RunOptions(report=stop))
    assert last_state(tmp_path)["step"] == 1


def test_pretrain_without_a_finite_held_out_loss_writes_no_teacher(tmp_path: Path) -> None:
    hopeless = recipe(training__optimizer__lr=1e25, training__iterations=1, training__optimizer__warmup=0)
    with pytest.raises(Failure, match="never finite"):
        pretrain(hopeless, tmp_path / "run", RunOptions())
    assert not (tmp_path / "run" / "teacher").exists()
