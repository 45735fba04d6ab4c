"""Names of version 0.1: they keep working wherever a name is given, and a sentence tells the present one."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

import pytest

import di4c_cli
from di4c_cli import embedded, recipe_file
from di4c_cli.cli.distill import resolve
from di4c_cli.errors import NameWarning
from di4c_cli.evaluation.protocols import check_name
from di4c_cli.lineage import find_teacher
from di4c_cli.tasks.registry import TASKS, get_task
from di4c_cli.teacher import recipe_for, registry
from di4c_cli.training.run_folder import RunFolder, RunState


@pytest.mark.parametrize(
    ("old", "new"),
    [
        ("tiny-vq", "fashion"),
        ("tiny-vq-student", "fashion-student"),
        ("tiny-digits@main", "digits@main"),
        ("di4c/tiny-text", "di4c/words"),
        ("tiny-text-frontier", "words-frontier"),
        ("tiny-speedup", "steps-saved"),
    ],
)
def test_current_name_of_an_old_one(old: str, new: str) -> None:
    assert embedded.current_name(old) == new
    with pytest.warns(NameWarning, match=f"^{old} is now called {new}\\.$"):
        assert embedded.ask_name(old) == new


@pytest.mark.parametrize(
    "name", ["fashion", "tiny-vqgan", "runs/a/tiny-vq", "./tiny-vq", "tiny-vq-mine", "my-tiny-vq", "tiny-vq/student"]
)
def test_current_name_leaves_other_names_and_paths_alone(name: str) -> None:
    assert embedded.current_name(name) == name


def test_every_task_has_its_models_and_recipes() -> None:
    assert set(TASKS) == set(embedded.RENAMED.values())
    for name in TASKS:
        assert {name, f"{name}-student"} <= registry.entries().keys()
        assert {name, f"di4c/{name}", f"pretrain/{name}"} <= set(recipe_file.names())


def test_models_load_by_their_old_names() -> None:
    with pytest.warns(NameWarning, match="tiny-digits-student is now called digits-student"):
        model = di4c_cli.load("tiny-digits-student")
    assert model.name == "digits-student"
    found = find_teacher({"teacher": "tiny-digits"}, None)
    assert found is not None and found.ref == "digits", "of a student of version 0.1, without a warning"


def test_a_name_that_is_also_a_path_is_pointed_out(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    (tmp_path / "digits").mkdir()
    with pytest.warns(NameWarning, match=r"digits is the name of a model; write \./digits for the path\."):
        assert di4c_cli.load("digits").name == "digits"


def test_recipes_protocols_and_tasks_are_found_by_their_old_names() -> None:
    with pytest.warns(NameWarning, match="paper/tiny-vq is now called di4c/fashion"):
        assert recipe_file.find("paper/tiny-vq") == recipe_file.find("di4c/fashion")
    with pytest.warns(NameWarning):
        assert check_name("tiny-speedup") == "steps-saved"
    with pytest.warns(NameWarning):
        assert get_task("tiny-pixels").name == "pixels"
    assert recipe_for("tiny-text") == "words"


def test_recipe_gets_the_present_names(tmp_path: Path) -> None:
    """A file or run of version 0.1 names old teachers: a run is resumed under the present name."""
    text = recipe_file.find("digits").read_text().replace(": digits", ": tiny-digits")
    assert "teacher: tiny-digits" in text
    (tmp_path / "run").mkdir()
    (tmp_path / "run" / "recipe.yaml").write_text(text)
    recipe, _ = resolve(None, None, {"teacher": "digits"}, [])
    assert recipe_file.read(str(tmp_path / "run" / "recipe.yaml")) == recipe
    assert RunFolder(tmp_path / "run").state(recipe) is RunState.UNFINISHED


def test_command_tells_the_new_name_once() -> None:
    words = [sys.executable, "-m", "di4c_cli", "recipes", "show", "tiny-vq"]
    done = subprocess.run(words, capture_output=True, text=True, check=True)
    assert done.stderr == "tiny-vq is now called fashion.\n" and done.stdout.startswith("# di4c distill")
