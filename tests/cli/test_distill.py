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
from di4c_cli.errors import NameWarning
from di4c_cli.methods import Di4CConfig
from tests.helpers.small_run import arguments, make_teacher


@pytest.fixture(scope="module")
def teacher(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return make_teacher(tmp_path_factory.mktemp("models") / "teacher")


def call(*args: str) -> Any:
    return CliRunner().invoke(app, list(args))


@pytest.mark.slow
def test_distill_ends_with_the_next_commands(teacher: Path, tmp_path: Path) -> None:
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
    assert "method.latents: 4 there, 5 asked" in other.stderr
    forced = call(*args, "--latents", "5", "--force")
    assert forced.exit_code == 0
    assert "The old run is now" in forced.stderr
    assert len(list(tmp_path.glob("run.old-*"))) == 1


def test_resolve_takes_the_embedded_fashion_images_by_default() -> None:
    recipe, name = resolve(None, None, {"teacher": None}, [])
    assert (recipe.teacher, recipe.data, name) == ("fashion", "embedded", "fashion")
    recipe, name = resolve(None, None, {"teacher": "sdtt-7", "rounds": 2}, [])
    assert (recipe.teacher, recipe.rounds, name) == ("sdtt-7", 2, "sdtt-7")
    recipe, name = resolve(None, None, {"teacher": "mdlm"}, ["method.alpha.kind=const", "training.batch=6"])
    assert isinstance(recipe.method, Di4CConfig)
    assert (recipe.teacher, name, recipe.method.alpha.kind, recipe.training.batch) == ("mdlm", "sdtt-7", "const", 6)


@pytest.mark.parametrize(
    ("teacher", "recipe", "method", "name"),
    [
        (None, None, "di4c", "di4c/fashion"),
        (None, None, "variational", "fashion"),
        ("words", None, "di4c", "di4c/words"),
        ("sdtt-7", None, "variational", "variational/sdtt-7"),
        ("mdlm", None, "sdtt", "sdtt/mdlm"),
        ("sdtt-7", None, "di4c", "sdtt-7"),
        (None, "di4c/fashion", "variational", "fashion"),
    ],
)
def test_resolve_finds_the_recipe_of_a_method(teacher: str | None, recipe: str | None, method: str, name: str) -> None:
    resolved, found = resolve(recipe, method, {"teacher": teacher}, [])
    assert (found, resolved.method.name) == (name, method)
    assert teacher is None or resolved.teacher == teacher


@pytest.mark.slow
@pytest.mark.parametrize(
    ("old", "new"), [("paper/tiny-digits", "di4c/digits"), ("leader/sdtt-7", "variational/sdtt-7")]
)
def test_dry_run_with_an_old_recipe_name_says_the_new_one(teacher: Path, tmp_path: Path, old: str, new: str) -> None:
    words = ["distill", "--teacher", str(teacher), "--data", "teacher", "--dry-run", "--iterations", "1"]
    with pytest.warns(NameWarning, match=f"{old} is now called {new}"):
        renamed = call(*words, "--recipe", old, "--out", str(tmp_path / "run"))
    current = call(*words, "--recipe", new, "--out", str(tmp_path / "run"))
    assert "is now called" not in current.stderr
    assert renamed.exit_code == current.exit_code == 0, renamed.stderr
    assert renamed.stdout.splitlines()[0] == current.stdout.splitlines()[0]
    assert f"method {new.split('/')[0]}" in renamed.stdout
    assert not list(tmp_path.iterdir())


@pytest.mark.parametrize(
    ("args", "words"),
    [
        (["--teacher", "digit"], ["There is no model", "digits"]),
        (["--teacher", "mine.ckpt"], ["'mine.ckpt'", "no such file or folder in the current folder"]),
        (["--teacher", "./mine"], ["'./mine'", "no such file or folder in the current folder"]),
        (["--teacher", "/nowhere/mine"], ["no such file or folder. Check"]),
        (["--recipe", "digts"], ["Unknown recipe", "digits"]),
        (["--teacher", "sdtt-6", "--method", "variational"], ["no recipe", "sdtt-6", "variational/sdtt-7"]),
        (["--method", "varational"], ["Unknown method 'varational'", "Did you mean 'variational'?"]),
        (["--set", "objective.latents=8"], ["The command line", "objective is now method"]),
        (["--set", "objective.posterior.draws=8"], ["method.iwae_samples"]),
        (["--set", "latent.law=8"], ["latent.law is now latent.prior=learned with latent.prior_width"]),
        (["--set", "training.teacher_share=0.5"], ["training.synthetic_share"]),
        (["--latents", "8"], ["--latents belongs to the method di4c", "fashion", "--method di4c"]),
        (["--method", "di4c", "--set", "method.alfa.kind=zero"], ["method.alfa.kind", "alpha"]),
        (["--set", "method.latents"], ["key=value"]),
        (["--iterations", "0"], ["training.iterations"]),
        (["--precision", "int8"], ["training.precision"]),
        (["--device", "abacus"], ["no device 'abacus'"]),
        (["--data", "nowhere.txt"], ["nowhere.txt", "--data teacher"]),
        (["--batch", "6", "--micro-batch", "4"], ["micro_batch"]),
        (["--processes", "2", "--accelerate-config", "fsdp"], ["fsdp2"]),
    ],
)
def test_distill_answers_a_mistake_in_a_sentence_and_writes_nothing(args: list[str], words: list[str]) -> None:
    result = call("distill", *args)
    assert result.exit_code == 2, result.stderr
    for word in words:
        assert word in result.stderr
    assert len(result.stderr.strip().splitlines()) == 1
    assert not Path("runs").exists()


def test_distill_rejects_an_out_folder_of_something_else(teacher: Path, tmp_path: Path) -> None:
    (tmp_path / "thesis.tex").write_text("mine")
    result = call(*arguments(teacher, tmp_path))
    assert result.exit_code == 2
    assert "not a di4c run" in result.stderr
    assert [path.name for path in tmp_path.iterdir()] == ["thesis.tex"]


@pytest.mark.slow
def test_dry_run_prints_and_writes_nothing(teacher: Path, tmp_path: Path) -> None:
    args = arguments(teacher, tmp_path / "run", "--dry-run")
    result = call(*args)
    assert result.exit_code == 0, result.stderr
    for word in ("recipe", "teacher", "memory", "s a step", "would write"):
        assert word in result.stdout
    assert json.loads(call(*args, "--json").stdout)["run"] == "new"
    assert not list(tmp_path.iterdir())


def test_duration_has_seconds_minutes_or_hours() -> None:
    assert [duration(seconds) for seconds in (3.6, 200, 7500)] == ["4 s", "3:20", "2:05:00"]


@pytest.mark.slow
def test_distill_says_which_recipe_it_chose(teacher: Path, tmp_path: Path) -> None:
    words = ["distill", "--teacher", str(teacher), "--dry-run", "--iterations", "1"]
    guessed = call(*words, "--out", str(tmp_path / "a"))
    assert "by the kind of teacher; --recipe chooses another." in guessed.stderr
    named = call(*words, "--recipe", "di4c/digits", "--out", str(tmp_path / "b"))
    assert "by the kind of teacher" not in named.stderr
