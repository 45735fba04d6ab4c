"""`di4c distill` as a user types it: defaults, summary, refusals."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest
from typer.testing import CliRunner

from di4c_cli.cli.app import app
from di4c_cli.cli.distill import resolve
from di4c_cli.cli.live import duration
from tests.helpers.small_run import arguments, make_teacher


@pytest.fixture(scope="module")
def teacher(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return make_teacher(tmp_path_factory.mktemp("models") / "teacher")


def call(*args: str) -> Any:
    return CliRunner().invoke(app, list(args))


def test_a_run_ends_with_the_next_commands(teacher: Path, tmp_path: Path) -> None:
    args = arguments(teacher, tmp_path / "run", "--json", iterations=3)
    first = call(*args)
    assert first.exit_code == 0, first.stderr
    figures = json.loads(first.stdout)
    assert (figures["steps"], figures["already_finished"]) == (3, False)
    assert f"di4c sample --student {tmp_path / 'run' / 'student'}" in first.stderr
    again = call(*args)
    assert again.exit_code == 0
    assert "finished already" in again.stderr and json.loads(again.stdout)["already_finished"]
    other = call(*args, "--latents", "5")
    assert other.exit_code == 2
    assert "objective.latents: 4 there, 5 asked" in other.stderr
    forced = call(*args, "--latents", "5", "--force")
    assert forced.exit_code == 0
    assert "The old run is now" in forced.stderr
    assert len(list(tmp_path.glob("run.old-*"))) == 1


def test_defaults_are_the_embedded_digits() -> None:
    recipe, name = resolve(None, None, {}, [])
    assert (recipe.teacher, recipe.data, name) == ("tiny-digits", "embedded", "tiny-digits")
    recipe, name = resolve("sdtt-7", None, {"rounds": 2}, [])
    assert (recipe.teacher, recipe.rounds, name) == ("sdtt-7", 2, "sdtt-7")
    recipe, name = resolve("mdlm", None, {}, ["objective.alpha.kind=const", "training.batch=6"])
    assert (recipe.teacher, name, recipe.objective.alpha.kind, recipe.training.batch) == (
        "mdlm",
        "sdtt-7",
        "const",
        6,
    )


def test_no_data_and_the_teachers_trajectory_are_one_wish() -> None:
    for flags, settings in (({"data": "teacher"}, []), ({}, ["objective.reference=teacher"])):
        recipe, _ = resolve(None, None, flags, settings)
        assert (recipe.data, recipe.objective.reference) == ("teacher", "teacher")


@pytest.mark.parametrize(
    ("args", "words"),
    [
        (["--teacher", "tiny-digit"], ["There is no model", "tiny-digits"]),
        (["--recipe", "tiny-digts"], ["Unknown recipe", "tiny-digits"]),
        (["--teacher", "sdtt-6", "--preset", "leader"], ["no preset 'leader'", "leader/sdtt-7"]),
        (["--set", "objective.alfa.kind=zero"], ["objective.alfa.kind", "alpha"]),
        (["--set", "objective.latents"], ["key=value"]),
        (["--iterations", "0"], ["training.iterations"]),
        (["--precision", "int8"], ["training.precision"]),
        (["--device", "abacus"], ["no device 'abacus'"]),
        (["--data", "nowhere.txt"], ["nowhere.txt", "--data teacher"]),
        (["--batch", "6", "--micro-batch", "4"], ["micro_batch"]),
        (["--processes", "2", "--accelerate-config", "fsdp"], ["fsdp2"]),
    ],
)
def test_mistakes_are_answered_in_a_sentence_and_write_nothing(args: list[str], words: list[str]) -> None:
    result = call("distill", *args)
    assert result.exit_code == 2, result.stderr
    for word in words:
        assert word in result.stderr
    assert len(result.stderr.strip().splitlines()) == 1
    assert not Path("runs").exists()


def test_an_out_folder_of_something_else_is_refused(teacher: Path, tmp_path: Path) -> None:
    (tmp_path / "thesis.tex").write_text("mine")
    result = call(*arguments(teacher, tmp_path))
    assert result.exit_code == 2
    assert "not a di4c run" in result.stderr
    assert [path.name for path in tmp_path.iterdir()] == ["thesis.tex"]


def test_dry_run_prints_and_writes_nothing(teacher: Path, tmp_path: Path) -> None:
    args = arguments(teacher, tmp_path / "run", "--dry-run")
    result = call(*args)
    assert result.exit_code == 0, result.stderr
    for word in ("recipe", "teacher", "memory", "s a step", "would write"):
        assert word in result.stdout
    assert json.loads(call(*args, "--json").stdout)["run"] == "new"
    assert not list(tmp_path.iterdir())


def test_durations() -> None:
    assert [duration(seconds) for seconds in (3.6, 200, 7500)] == ["4 s", "3:20", "2:05:00"]


def test_a_recipe_that_nobody_named_is_said(teacher: Path, tmp_path: Path) -> None:
    words = ["distill", "--teacher", str(teacher), "--dry-run", "--iterations", "1"]
    guessed = call(*words, "--out", str(tmp_path / "a"))
    assert "by the kind of teacher; --recipe chooses another." in guessed.stderr
    named = call(*words, "--recipe", "paper/tiny-digits", "--out", str(tmp_path / "b"))
    assert "by the kind of teacher" not in named.stderr
