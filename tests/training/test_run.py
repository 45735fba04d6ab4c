"""Whole runs in this process: files, resuming anywhere, rounds, accumulation, precision."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from safetensors.torch import load_file

from di4c_cli import recipe_file
from di4c_cli.errors import UserError
from di4c_cli.latent.config import LatentConfig
from di4c_cli.model import Model, load, load_folder
from di4c_cli.training.metrics import read_rows
from di4c_cli.training.round_data import pool_size
from di4c_cli.training.run import RunOptions, distill
from di4c_cli.training.student_init import new_student, student_config
from tests.helpers.small_run import losses, make_teacher, run_cut, same, small_recipe, weights

RUN_FILES = {"recipe.yaml", "metrics.jsonl", "curves.png", "round-1", "student"}
CHECKPOINT_FILES = {"model.safetensors", "ema.safetensors", "optimizer.pt", "state.json"}


def test_run_writes_exactly_these_files(teacher: Path, tmp_path: Path) -> None:
    out = tmp_path / "run"
    distill(small_recipe(teacher), out, RunOptions())
    assert {path.name for path in out.iterdir()} == RUN_FILES
    assert {path.name for path in (out / "student").iterdir()} == {"model.safetensors", "config.json", "README.md"}
    kept = sorted(path.name for path in (out / "round-1" / "checkpoints").iterdir())
    assert kept == ["step-00000003", "step-00000006"]
    assert {path.name for path in (out / "round-1" / "checkpoints" / kept[0]).iterdir()} == CHECKPOINT_FILES
    assert [row["step"] for row in read_rows(out / "metrics.jsonl")] == [1, 2, 3, 4, 5, 6]
    assert (out / "curves.png").read_bytes().startswith(b"\x89PNG")


@pytest.mark.slow
def test_finished_run_says_so_and_writes_nothing(teacher: Path, tmp_path: Path) -> None:
    out, recipe = tmp_path / "run", small_recipe(teacher)
    assert not distill(recipe, out, RunOptions()).already_finished
    before = (out / "metrics.jsonl").stat().st_mtime_ns
    assert distill(recipe, out, RunOptions()).already_finished
    assert (out / "metrics.jsonl").stat().st_mtime_ns == before


@pytest.mark.slow
def test_run_stopped_anywhere_in_any_round_gives_the_same_student(teacher: Path, tmp_path: Path) -> None:
    recipe = small_recipe(teacher, rounds=2, training__dropout=0.1)
    distill(recipe, tmp_path / "whole", RunOptions())
    run_cut(recipe, tmp_path / "cut", (1, 2), (1, 4), (2, 1), (2, 5))
    assert same(weights(tmp_path / "whole"), weights(tmp_path / "cut"))
    assert losses(tmp_path / "whole") == losses(tmp_path / "cut")
    places = [(row["round"], row["step"]) for row in read_rows(tmp_path / "cut" / "metrics.jsonl")]
    assert places == [(number, step) for number in (1, 2) for step in range(1, 7)]


@pytest.mark.slow
def test_round_two_learns_from_round_one(teacher: Path, tmp_path: Path) -> None:
    recipe = small_recipe(teacher, rounds=2, training__synthetic_share=0.5, training__synthetic_pool=4)
    distill(recipe, tmp_path / "run", RunOptions())
    first = load_folder(tmp_path / "run" / "round-1" / "student")
    config = student_config(first, recipe, 2)
    start = new_student(first, config, recipe, 2).network.state_dict()
    assert same(start, first.denoiser.network.state_dict())
    history = json.loads((tmp_path / "run" / "student" / "config.json").read_text())["provenance"]
    assert (history["round"], history["parent"]["provenance"]["round"]) == (2, 1)
    assert history["data"] == "embedded"
    assert history["parent"]["provenance"]["parent"]["name"] == "digits"
    assert str(tmp_path.parent.parent) not in (tmp_path / "run" / "student" / "config.json").read_text()
    assert same(weights(tmp_path / "run"), load_file(tmp_path / "run" / "round-2" / "student" / "model.safetensors"))


@pytest.mark.parametrize(("inject", "part"), [("token", "latent_projection"), ("film", "latent_film")])
def test_student_starts_as_its_teacher_with_new_latent_parts(teacher: Path, inject: str, part: str) -> None:
    model, recipe = load_folder(teacher), small_recipe(teacher, latent__inject=inject)
    config = student_config(model, recipe, 1)
    own, given = (new_student(model, config, recipe, 1).network.state_dict(), model.denoiser.network.state_dict())
    assert all(torch.equal(own[name], given[name]) for name in given)
    assert {name.split(".")[0] for name in own.keys() - given.keys()} == {part}
    assert same(own, new_student(model, config, recipe, 1).network.state_dict())
    other = small_recipe(teacher, seed=1, latent__inject=inject)
    assert not same(own, new_student(model, config, other, 1).network.state_dict())


def test_student_of_a_mixture_teacher_keeps_its_latent(tmp_path: Path) -> None:
    folder = make_teacher(tmp_path / "mixture", "digits-student", LatentConfig(inject="film"))
    model, recipe = load_folder(folder), small_recipe(folder)
    config = student_config(model, recipe, 1)
    assert config.latent == LatentConfig(inject="film")
    assert same(new_student(model, config, recipe, 1).network.state_dict(), model.denoiser.network.state_dict())


@pytest.mark.slow
def test_accumulation_gives_the_same_losses(teacher: Path, tmp_path: Path) -> None:
    for size in (4, 1):
        recipe = small_recipe(teacher, training__micro_batch=size)
        distill(recipe, tmp_path / f"micro-{size}", RunOptions(dtype=torch.float64))
    pairs = zip(losses(tmp_path / "micro-4"), losses(tmp_path / "micro-1"), strict=True)
    assert max(abs(one - other) for one, other in pairs) < 1e-9


@pytest.mark.slow
@pytest.mark.parametrize(
    "setting",
    [{"training__precision": "bf16"}, {"training__activation_checkpointing": True}, {"training__sample_every": 2}],
)
def test_options_of_the_loop_train_and_stay_close(teacher: Path, tmp_path: Path, setting: dict[str, Any]) -> None:
    distill(small_recipe(teacher), tmp_path / "plain", RunOptions())
    distill(small_recipe(teacher, **setting), tmp_path / "other", RunOptions())
    exact = "training__precision" not in setting
    pairs = list(zip(losses(tmp_path / "plain"), losses(tmp_path / "other"), strict=True))
    assert max(abs(one - other) for one, other in pairs) < (1e-5 if exact else 0.2)
    if "training__sample_every" in setting:
        assert len(list((tmp_path / "other" / "samples").glob("*.png"))) == 3


@pytest.mark.slow
def test_run_reports_a_mixture_that_collapses(teacher: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("di4c_cli.methods.diagnostics.WARMUP_STEPS", 3)
    said: list[str] = []
    recipe = small_recipe(teacher, latent__init="zero", training__optimizer__lr=1e-12)
    distill(recipe, tmp_path / "run", RunOptions(say=said.append))
    assert len(said) == 1 and said[0].startswith("Step 3: λ has no influence")


@pytest.mark.slow
def test_run_without_data_reads_none(teacher: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("di4c_cli.data.source.embedded_items", lambda *_: pytest.fail("data was read"))
    recipe = small_recipe(teacher, data="teacher", method__reference_steps=4)
    distill(recipe, tmp_path / "run", RunOptions())
    assert len(losses(tmp_path / "run")) == 6


def test_run_with_a_mistake_writes_nothing(teacher: Path, tmp_path: Path) -> None:
    for values in (
        {"teacher": "digit"},
        {"data": "nowhere"},
        {"training__batch": 5, "training__micro_batch": 2},
        {"teacher": "pixels", "data": "embedded", "latent__inject": "local"},
        {"teacher": "digits-student", "data": "embedded", "method__stratified": True},
    ):
        recipe = small_recipe(**({"teacher": teacher} | values))
        with pytest.raises(UserError):
            distill(recipe, tmp_path / "run", RunOptions())
        assert not (tmp_path / "run").exists()


@pytest.mark.parametrize(
    ("overrides", "expected"),
    [
        ({"training.synthetic_share": 0.0}, (0.0, 0)),
        ({"training.synthetic_share": 0.4, "training.synthetic_pool": 400}, (0.4, 400)),
        ({"training.synthetic_share": 0.4, "training.synthetic_pool": 400, "data": "teacher"}, (1.0, 1000)),
        ({"training.synthetic_share": 0.0, "training.synthetic_pool": 400, "data": "teacher"}, (1.0, 400)),
        (
            {
                "training.synthetic_share": 0.4,
                "training.synthetic_pool": 400,
                "training.iterations": 3,
                "training.batch": 5,
            },
            (0.4, 15),
        ),
    ],
)
def test_pool_size_of_the_teachers_samples(overrides: dict[str, Any], expected: tuple[float, int]) -> None:
    assert pool_size(recipe_file.read("digits", overrides)) == expected


def test_pool_size_of_di4c_without_data_is_zero() -> None:
    """It follows the teacher's trajectory anew for every batch."""
    assert pool_size(recipe_file.read("di4c/digits", {"data": "teacher"})) == (0.0, 0)


@pytest.mark.parametrize("said", [None, "ema", "live"])
def test_run_reads_the_weights_that_were_asked_for(
    teacher: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, said: str | None
) -> None:
    asked: list[object] = []

    def load(ref: str, **options: object) -> None:
        asked.append(options.get("weights"))
        raise UserError("far enough")

    monkeypatch.setattr("di4c_cli.training.from_teacher.load", load)
    with pytest.raises(UserError, match="far enough"):
        distill(small_recipe(teacher, init_weights=said), tmp_path / "run", RunOptions())
    assert asked == [said]


@pytest.mark.slow
def test_run_starts_the_student_from_the_live_weights(tmp_path: Path) -> None:
    """With `student_weights: live`; the teacher keeps its averaged weights, as in the authors' CIFAR-10 code."""
    file = next((Path(__file__).parents[1] / "golden/tauldr/teacher/checkpoints").glob("*.pt"))
    live, averaged = (load(str(file), weights=which).denoiser for which in ("live", "ema"))
    np.savez(tmp_path / "x.npz", x=np.zeros((4, live.length), np.uint8))
    values = {"teacher": str(file), "data": str(tmp_path / "x.npz"), "method.latents": 2, "training.batch": 2}
    values |= {"training.iterations": 1, "training.optimizer.lr": 1e-12}
    result = distill(recipe_file.read("authors/tauldr-cifar10", values), tmp_path / "run", RunOptions())
    student = load(str(result.folder.model)).denoiser.network.state_dict()
    name = "input_conv.weight"
    torch.testing.assert_close(student[name], live.network.state_dict()[name], rtol=0, atol=1e-6)
    assert not torch.allclose(student[name], averaged.network.state_dict()[name], rtol=0, atol=1e-6)


@pytest.mark.slow
def test_run_says_once_that_data_has_no_labels(teacher: Path, tmp_path: Path) -> None:
    np.savez(tmp_path / "plain.npz", x=np.zeros((4, 64), np.uint8))
    np.savez(tmp_path / "labelled.npz", x=np.zeros((4, 64), np.uint8), label=np.arange(4))
    for name, count in (("plain", 1), ("labelled", 0)):
        said: list[str] = []
        recipe = small_recipe(teacher, data=str(tmp_path / f"{name}.npz"), training__iterations=1, rounds=2)
        distill(recipe, tmp_path / name, RunOptions(say=said.append))
        assert sum("has no labels" in line for line in said) == count


@pytest.mark.slow
def test_run_draws_samples_on_its_device(teacher: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    moved: list[tuple[str, str]] = []
    to = Model.to

    def record(self: Model, device: torch.device | str) -> Model:
        moved.append((self.config.kind, str(device)))
        return to(self, device)

    monkeypatch.setattr(Model, "to", record)
    distill(small_recipe(teacher, training__sample_every=6), tmp_path / "run", RunOptions())
    assert ("student", "cpu") in moved
