"""Outputs that two commands share, that do not fit on the disk, or whose input turns out to be bad half-way."""

from __future__ import annotations

import json
import os
import resource
from pathlib import Path

import numpy as np
import pytest

from di4c_cli import files
from di4c_cli.errors import Failure
from di4c_cli.training.run import RunOptions, distill
from tests.helpers.faults import call, sentence
from tests.helpers.small_run import make_teacher, small_recipe
from tests.helpers.standin import GOLDEN


def test_convert_on_a_full_disk_is_one_sentence(tmp_path: Path) -> None:
    """The library that writes the weights has an error class of its own."""
    child = os.fork()
    if child == 0:
        code = 99
        try:
            resource.setrlimit(resource.RLIMIT_FSIZE, (20_000, resource.RLIM_INFINITY))
            result = call("convert", GOLDEN / "sdtt", tmp_path / "model")
            resource.setrlimit(resource.RLIMIT_FSIZE, (resource.RLIM_INFINITY, resource.RLIM_INFINITY))
            (tmp_path / "said").write_text(result.stderr)
            code = result.exit_code
        finally:
            os._exit(code)
    assert os.waitstatus_to_exitcode(os.waitpid(child, 0)[1]) == 1
    sentence((tmp_path / "said").read_text(), "The disk is full: model could not be written", "Free space")
    assert [path.name for path in tmp_path.iterdir()] == ["said"]


def test_convert_twice_gives_equal_bytes(tmp_path: Path) -> None:
    for name in ("one", "two"):
        assert call("convert", GOLDEN / "sdtt", tmp_path / name).exit_code == 0
    for path in (tmp_path / "one").iterdir():
        assert path.read_bytes() == (tmp_path / "two" / path.name).read_bytes(), path.name


def test_sample_rejects_a_folder_that_another_command_is_filling(tmp_path: Path) -> None:
    teacher, out = make_teacher(tmp_path / "teacher"), tmp_path / "out"
    words = ["sample", "--teacher", teacher, "-n", 2, "--steps", 1, "--out", out]
    with files.lock(out):
        result = call(*words)
        assert result.exit_code == 2 and "Another di4c is writing to" in result.stderr
    assert call(*words).exit_code == 0
    assert sorted(path.name for path in out.iterdir()) == ["ids-00000.npy", "manifest.json"]


def test_sample_takes_a_folder_in_which_the_first_manifest_was_cut(tmp_path: Path) -> None:
    teacher, out = make_teacher(tmp_path / "teacher"), tmp_path / "out"
    out.mkdir()
    (out / ".manifest.json.part").write_text('{"ident')
    assert call("sample", "--teacher", teacher, "-n", 2, "--steps", 1, "--out", out).exit_code == 0
    assert json.loads((out / "manifest.json").read_text())["n"] == 2
    (out / "thesis.txt").write_text("x")
    (out / "manifest.json").unlink()
    result = call("sample", "--teacher", teacher, "-n", 2, "--steps", 1, "--out", out)
    assert result.exit_code == 2 and "holds something else" in result.stderr


def test_three_commands_at_once_on_one_output(tmp_path: Path) -> None:
    """Each writes the whole file or folder; the last one wins, and nothing of the others is left."""
    teacher = make_teacher(tmp_path / "teacher")
    out = tmp_path / "out"
    for words in (
        ["sample", "--teacher", teacher, "-n", 2, "--steps", 1, "--out", out / "x.png"],
        ["convert", teacher, out / "model", "--force"],
    ):
        assert call(*words).exit_code == 0  # imports what the copies of this process then have
        assert [os.waitstatus_to_exitcode(os.waitpid(copy, 0)[1]) for copy in copies(words, 3)] == [0, 0, 0]
    assert {path.name for path in out.iterdir()} == {"x.png", "model"}


def copies(words: list[object], count: int) -> list[int]:
    """Processes that run the same command at once."""
    found = []
    for _ in range(count):
        found.append(os.fork())
        if found[-1] == 0:
            code = 99
            try:
                code = call(*words).exit_code
            finally:
                os._exit(code)
    return found


def test_distill_ends_with_1_at_a_bad_record_in_mid_run(tmp_path: Path) -> None:
    """Files are written by then, so it is not the exit code of a request that changed nothing."""
    teacher = make_teacher(tmp_path / "teacher")
    x = np.zeros((40, 64), np.uint8)
    x[20:] = 200  # the teacher has 8 symbols
    np.save(tmp_path / "data.npy", x)
    recipe = small_recipe(teacher, data=str(tmp_path / "data.npy"), training__iterations=30)
    with pytest.raises(Failure, match="id 200 is outside the teacher's vocabulary") as caught:
        distill(recipe, tmp_path / "run", RunOptions())
    assert caught.value.exit_code == 1 and (tmp_path / "run" / "recipe.yaml").is_file()
