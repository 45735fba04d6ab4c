"""The state of a run folder, its lock, and its default name."""

from __future__ import annotations

from pathlib import Path

import pytest

from di4c_cli import files
from di4c_cli.errors import UserError
from di4c_cli.training.run_folder import RunFolder, RunState, default_out
from tests.helpers.small_run import small_recipe


def test_state_is_new_unfinished_or_finished(tmp_path: Path) -> None:
    folder, recipe = RunFolder(tmp_path / "run"), small_recipe("digits")
    assert folder.state(recipe) is RunState.NEW
    folder.start(recipe)
    assert folder.state(recipe) is RunState.UNFINISHED
    folder.model.mkdir()
    (folder.model / "config.json").write_text("{}")
    assert folder.state(recipe) is RunState.FINISHED


def test_state_rejects_another_recipe_with_the_difference(tmp_path: Path) -> None:
    folder = RunFolder(tmp_path / "run")
    folder.start(small_recipe("digits"))
    other = small_recipe("digits", method__alpha__kind="zero", rounds=2)
    with pytest.raises(UserError, match=r"method\.alpha\.kind: sigmoid there, zero asked; rounds: 1 there, 2"):
        folder.state(other)


def test_state_ignores_settings_that_do_not_change_the_student(tmp_path: Path) -> None:
    folder = RunFolder(tmp_path / "run")
    folder.start(small_recipe("digits"))
    other = small_recipe("digits", training__checkpoint_every=1, training__keep=5)
    assert folder.state(other) is RunState.UNFINISHED


def test_state_accepts_a_run_from_before_a_setting_existed(tmp_path: Path) -> None:
    folder, recipe = RunFolder(tmp_path / "run"), small_recipe("digits")
    folder.start(recipe)
    lines = folder.recipe.read_text().splitlines(keepends=True)
    folder.recipe.write_text("".join(line for line in lines if "stratified" not in line))
    assert folder.state(recipe) is RunState.UNFINISHED
    with pytest.raises(UserError, match=r"method\.stratified: False there, True asked"):
        folder.state(small_recipe("digits", method__stratified=True))


def test_state_of_a_run_of_version_0_1_names_the_new_keys(tmp_path: Path) -> None:
    """Its checkpoints belong to other parameter names, so the run cannot continue."""
    (tmp_path / "recipe.yaml").write_text(
        "kind: distill\nname: digits\nsummary: old\nteacher: digits\nlatent: {dim: 16, law: 256}\n"
        "objective: {latents: 1, posterior: {width: 256, floor: 0.05}}\ntraining: {label_drop: 0.5}\n"
    )
    with pytest.raises(UserError) as caught:
        RunFolder(tmp_path).state(small_recipe("digits"))
    said = str(caught.value)
    for words in (
        f"The run in {tmp_path} has keys of version 0.1",
        "latent.law is now latent.prior",
        "objective is now method",
        "objective.posterior.width is now method.encoder_width",
        "objective.posterior.floor is now method.kl_weight.start",
        "training.label_drop is now training.label_dropout",
        "--force moves the old run aside",
    ):
        assert words in said, said


@pytest.mark.parametrize("name", ["thesis.txt", "recipe.yaml"])
def test_state_rejects_a_foreign_folder(tmp_path: Path, name: str) -> None:
    (tmp_path / name).write_text("not: [ours")
    with pytest.raises(UserError, match="--force"):
        RunFolder(tmp_path).state(small_recipe("digits"))


def test_move_aside_keeps_everything(tmp_path: Path) -> None:
    folder = RunFolder(tmp_path / "run")
    assert folder.move_aside() is None
    moved = []
    for text in ("one", "two"):
        folder.path.mkdir()
        (folder.path / "note").write_text(text)
        moved.append(folder.move_aside())
    assert [(path / "note").read_text() for path in moved if path] == ["one", "two"]
    assert not folder.path.exists()


def test_lock_lets_one_command_write(tmp_path: Path) -> None:
    folder = RunFolder(tmp_path / "run")
    with files.lock(folder.path), pytest.raises(UserError, match="Another di4c"), files.lock(folder.path):
        pass
    with files.lock(folder.path):
        assert folder.state(small_recipe("digits")) is RunState.NEW


def test_default_out_names_teacher_recipe_and_seed(tmp_path: Path) -> None:
    (tmp_path / "mine" / "student").mkdir(parents=True)
    assert default_out("sdtt-7", "sdtt-7", 3) == Path("runs/sdtt-7-sdtt-7-s3")
    assert default_out("user/model", "ablations/alpha", 0) == Path("runs/user-model-ablations-alpha-s0")
    assert default_out(str(tmp_path / "mine" / "student"), "digits", 0) == Path("runs/mine-digits-s0")


@pytest.mark.parametrize(
    ("place", "teacher", "name"),
    [
        ("mine/student", ".", "mine"),
        ("mine/student", "..", "mine"),
        ("mine", ".", "mine"),
        ("", "/", "model"),
        ("mine/deep", "../student", "mine"),
    ],
)
def test_default_out_resolves_a_relative_teacher(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, place: str, teacher: str, name: str
) -> None:
    for folder in ("mine/student", "mine/deep"):
        (tmp_path / folder).mkdir(parents=True)
    monkeypatch.chdir(tmp_path / place)
    assert default_out(teacher, "digits", 0) == Path(f"runs/{name}-digits-s0")


@pytest.mark.parametrize("kind", ["student", "teacher"])
def test_clean_puts_back_a_model_that_was_being_replaced(tmp_path: Path, kind: str) -> None:
    (tmp_path / "round-1" / f".{kind}.old").mkdir(parents=True)
    RunFolder(tmp_path, kind).clean()
    assert [path.name for path in (tmp_path / "round-1").iterdir()] == [kind]


def test_state_after_a_kill_while_the_recipe_was_written_is_new(tmp_path: Path) -> None:
    folder = RunFolder(tmp_path)
    (tmp_path / ".recipe.yaml.77.part").write_text("half")
    (tmp_path / ".student.77.part").mkdir()
    assert folder.state(small_recipe("digits")) is RunState.NEW
    folder.clean()
    assert list(tmp_path.iterdir()) == []
