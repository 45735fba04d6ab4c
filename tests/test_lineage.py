"""A student's teacher: found through the run or by a listed name, never by an untrusted config.json alone."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
from typer.testing import CliRunner

import di4c_cli
from di4c_cli import hub, model_folder
from di4c_cli.build import build_denoiser
from di4c_cli.cli import bench_latency
from di4c_cli.cli.app import app
from di4c_cli.errors import UserError
from di4c_cli.evaluation.models import load_models
from di4c_cli.lineage import TeacherRef, find_teacher
from di4c_cli.recipe_file import read
from di4c_cli.sampler.config import HandoffConfig
from di4c_cli.teacher import registry
from di4c_cli.training.run_folder import RunFolder
from di4c_cli.training.student_init import student_config
from tests.helpers.small_models import save_pair, small_model


def run_of(root: Path, teacher: str, name: str = "run", **more: Any) -> Path:
    """A run's folder as `distill` leaves it, with an untrained student."""
    recipe = read("digits", {"teacher": teacher, **more})
    folder = RunFolder(root / name)
    folder.start(recipe)
    config = student_config(di4c_cli.load(teacher), recipe, 1)
    config.sampling.handoff = None
    model_folder.save_folder(folder.model, config, build_denoiser(config), "# card\n")
    return folder.path


def test_entrants_include_a_local_teacher(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """A folder, a file, a student that is a teacher, and a path as it was typed."""
    monkeypatch.chdir(tmp_path)
    save_pair(tmp_path / "models")
    for number, ref in enumerate(("models/teacher", str(tmp_path / "models/teacher/model.safetensors"))):
        run = run_of(tmp_path, ref, f"run-{number}")
        found = load_models(str(run / "student"), None)
        assert [(model.row, model.ref) for model in found] == [("teacher", ref), ("student", str(run / "student"))]
    second = run_of(tmp_path, "run-0", "again")
    assert di4c_cli.load(str(second)).teacher.config.kind == "student"
    assert bench_latency._models(str(second), None, "cpu")[0].config.kind == "student"


def test_find_teacher_of_the_student_of_a_round(tmp_path: Path) -> None:
    history = {"teacher": "teacher"}
    save_pair(tmp_path)
    for place in ("student", "round-1/student"):
        found = find_teacher(history, tmp_path / place)
        assert found == TeacherRef(str(tmp_path / "teacher"))
    assert find_teacher(history, tmp_path / "elsewhere" / "student") is None
    assert find_teacher({"teacher": "another"}, tmp_path / "student") is None
    for said, options in (("live", {"weights": "live"}), ("ema", {"weights": "ema"}), ("null", {})):
        (tmp_path / "recipe.yaml").write_text(f"teacher: {tmp_path / 'teacher'}\ninit_weights: {said}\n")
        assert find_teacher(history, tmp_path / "student") == TeacherRef(str(tmp_path / "teacher"), options)


def test_eval_of_a_student_without_its_teacher_is_alone(tmp_path: Path) -> None:
    _, pupil = save_pair(tmp_path)
    (tmp_path / "recipe.yaml").unlink()
    told: list[str] = []
    assert [one.row for one in load_models(str(pupil), None, say=told.append)] == ["student"]
    assert len(told) == 1 and "'teacher'" in told[0] and "alone" in told[0] and "--teacher" in told[0]
    words = ["eval", "--student", str(pupil), "--steps", "1", "-n", "60", "--out", str(tmp_path / "out")]
    done = CliRunner().invoke(app, words)
    assert done.exit_code == 0, done.stderr
    assert "alone" in done.stderr


def test_load_models_needs_the_teacher_of_a_handoff_student(tmp_path: Path) -> None:
    model = small_model("student")
    model.config.sampling.handoff = HandoffConfig()
    model.config.provenance["teacher"] = "nobody.pt"
    model_folder.save_folder(tmp_path / "student", model.config, model.denoiser, "# card\n")
    with pytest.raises(UserError, match=r"'nobody.pt' .* Name it with --teacher"):
        load_models(str(tmp_path / "student"), None)


@pytest.mark.parametrize("name", ["evil/model", "evil/model@main", "{folder}", "../teacher", "no\0name"])
def test_find_teacher_loads_nothing_from_an_untrusted_config(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, name: str
) -> None:
    """Neither the Hub nor a path of this machine, whatever config.json says."""
    teacher, pupil = save_pair(tmp_path / "own")
    monkeypatch.chdir(pupil)
    model = small_model("student")
    model.config.provenance["teacher"] = name.format(folder=teacher)
    model_folder.save_folder(tmp_path / "theirs", model.config, model.denoiser, "# card\n")
    monkeypatch.setattr(hub.Fetcher, "_download", lambda *_: pytest.fail("the Hub was asked"))
    stranger = di4c_cli.load(str(tmp_path / "theirs"))
    assert stranger.teacher_ref == ""
    with pytest.raises(UserError, match="is not known here"):
        stranger.sample(1, steps=2, hybrid=1)
    with pytest.raises(UserError, match="is not known here"):
        bench_latency._models(str(tmp_path / "theirs"), None, "cpu")


def test_find_teacher_takes_a_hub_teacher_from_the_cache_only(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    (tmp_path / "recipe.yaml").write_text("teacher: some/body@v1\n")
    history = {"teacher": "some/body@v1"}
    assert find_teacher(history, tmp_path / "student") is None
    monkeypatch.setattr(hub, "is_cached", lambda repo, revision, names: (repo, revision) == ("some/body", "v1"))
    assert find_teacher(history, tmp_path / "student") == TeacherRef("some/body@v1", {"offline": True})
    (tmp_path / "recipe.yaml").write_text('teacher: "no\\0name"\n')
    assert find_teacher({"teacher": "no\0name"}, tmp_path / "student") is None


def test_find_teacher_pins_listed_names_to_the_recorded_commit() -> None:
    entry = next(entry for entry in registry.entries().values() if entry.source == "hub")
    commit = "0123456789abcdef" * 2 + "01234567"
    assert find_teacher({"teacher": entry.name, "teacher_revision": commit}, None) == TeacherRef(
        f"{entry.name}@{commit}"
    )
    for revision in (None, "refs/pr/3", "../x"):
        history = {"teacher": entry.name, "teacher_revision": revision}
        assert find_teacher(history, None) == TeacherRef(entry.name)
    assert find_teacher({"teacher": "words", "teacher_revision": commit}, None) == TeacherRef("words")
    assert find_teacher({}, None) is None
