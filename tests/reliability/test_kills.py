"""Commands killed at a change of a file: nothing is lost, and the same command then succeeds, without leftovers.

Every third change by default; DI4C_KILL_STRIDE=1 takes them all.
"""

from __future__ import annotations

import os
import shutil
from pathlib import Path

import pytest

from di4c_cli import files
from di4c_cli.model_folder import load_folder
from di4c_cli.teacher.convert import convert
from tests.helpers.faults import call, run_killed
from tests.helpers.small_run import make_teacher
from tests.helpers.standin import GOLDEN

SMALL = str(GOLDEN / "sdtt")
STRIDE = int(os.environ.get("DI4C_KILL_STRIDE", "3"))


def tree(folder: Path) -> dict[str, bytes]:
    """Every file below a folder."""
    return {str(path.relative_to(folder)): path.read_bytes() for path in folder.rglob("*") if path.is_file()}


def leftovers(folder: Path) -> list[str]:
    return [path.name for path in folder.rglob("*") if files.is_leftover(path.name)]


def kill_in_turn(words: list[object], place: Path, compare: bool = True, stride: int = STRIDE) -> None:
    """Kill the command at its changes in an empty `place` and run it again: the files are those of a whole run."""
    call(*words)  # imports what the copies of this process then have
    shutil.rmtree(place)
    place.mkdir()
    count = run_killed(words, place)
    whole = tree(place)
    assert count > 3 and whole and not leftovers(place)
    for at in range(0, count, stride):
        shutil.rmtree(place)
        place.mkdir()
        assert run_killed(words, place, at) == at, "it was killed"
        run_killed(words, place)
        assert not leftovers(place), at
        found = tree(place)
        assert found == whole if compare else found.keys() == whole.keys(), at


def test_convert_survives_kills(tmp_path: Path) -> None:
    kill_in_turn(["convert", SMALL, tmp_path / "out" / "model", "--force"], tmp_path / "out")


@pytest.mark.parametrize("exchange", [True, False])
def test_convert_in_place_never_hides_the_model(
    tmp_path: Path, exchange: bool, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The model can be read after every kill: exchanged in one step or, where that is impossible, put back."""
    if not exchange:
        monkeypatch.setattr(files, "exchange", lambda one, other: False)
    place, model = tmp_path / "out", tmp_path / "out" / "model"
    convert(SMALL, model)
    words: list[object] = ["convert", model, model, "--force"]
    count = run_killed(words, place)
    for at in range(count):
        run_killed(words, place, at)
        if not model.exists():
            assert not exchange
            assert call("convert", model, tmp_path / "copy", "--force").exit_code == 0, "found again by its name"
        load_folder(model)
    run_killed(words, place)
    assert not leftovers(place)


def test_sample_shards_survive_kills(tmp_path: Path) -> None:
    teacher = make_teacher(tmp_path / "teacher")
    out = tmp_path / "out" / "shards"
    words: list[object] = ["sample", "--teacher", teacher, "-n", 3, "--steps", 1, "--out", out]
    kill_in_turn(words, tmp_path / "out")


@pytest.mark.slow
def test_eval_survives_kills(tmp_path: Path) -> None:
    teacher = make_teacher(tmp_path / "teacher")
    words: list[object] = ["eval", "--teacher", teacher, "--steps", 1, "-n", 4, "--out", tmp_path / "out" / "e"]
    kill_in_turn(words, tmp_path / "out", compare=False, stride=8 * STRIDE)


@pytest.mark.slow
def test_report_survives_kills(tmp_path: Path) -> None:
    teacher = make_teacher(tmp_path / "teacher")
    source = tmp_path / "source"
    assert call("eval", "--teacher", teacher, "--steps", 1, "-n", 4, "--out", source).exit_code == 0
    words: list[object] = ["report", source, "--out", tmp_path / "out" / "page.html"]
    kill_in_turn(words, tmp_path / "out", compare=False)
