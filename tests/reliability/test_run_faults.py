"""Faults around the folder of a run: closed to writing, shared by two, deleted, stopped by a scheduler."""

from __future__ import annotations

import os
import shutil
import signal
import subprocess
from pathlib import Path
from typing import Any

import pytest

from di4c_cli import embedded
from di4c_cli.cli.guard import machine_fault
from di4c_cli.errors import Failure
from di4c_cli.training.launch import common_exit_code
from di4c_cli.training.metrics import read_rows
from di4c_cli.training.run import RunOptions, distill
from tests.helpers.faults import call, command, told
from tests.helpers.small_run import PATIENCE, arguments, same, small_recipe, started, wait_for_steps, weights


@pytest.mark.parametrize("words", [["sample", "-n", 2, "--steps", 1], ["convert", "digits"], ["recipes"]])
def test_command_names_a_closed_folder(closed: Path, words: list[Any], monkeypatch: pytest.MonkeyPatch) -> None:
    """Writing there fails in a sentence that names the place; what only reads works in it."""
    monkeypatch.chdir(closed)
    if words[0] == "recipes":
        assert call(*words).exit_code == 0
        return
    target = {"sample": ["--out", closed / "x.png"], "convert": [closed / "model"]}[words[0]]
    result = call(*words, *target)
    said = [line for line in result.stderr.splitlines() if line.startswith("di4c: ")]
    assert result.exit_code == 1 and len(said) == 1, result.stderr
    assert str(closed) in said[0] and "Traceback" not in result.stderr
    assert list(closed.iterdir()) == []


def test_distill_names_a_closed_folder(closed: Path, teacher: Path) -> None:
    told(call(*arguments(teacher, closed / "run")), 1, str(closed), "Choose another folder")


@pytest.mark.slow
def test_distill_resumes_after_its_folder_was_closed(teacher: Path, closed: Path, tmp_path: Path) -> None:
    """The folder of checkpoints is closed under way: the last one stands, the same command goes on."""
    out = tmp_path / "run"
    place = out / "round-1" / "checkpoints"

    def close(row: dict[str, Any]) -> None:
        if row["step"] == 4:
            place.chmod(0o555)

    recipe = small_recipe(teacher, training__iterations=9)
    with pytest.raises(PermissionError):
        distill(recipe, out, RunOptions(report=close))
    place.chmod(0o755)
    assert [path.name for path in place.iterdir()] == ["step-00000003"]
    distill(recipe, out, RunOptions())
    assert [row["step"] for row in read_rows(out / "metrics.jsonl")] == list(range(1, 10))


@pytest.mark.slow
def test_distill_rejects_a_second_writer_and_stops_on_sigterm(teacher: Path, tmp_path: Path) -> None:
    """A second command is refused, forced or not; SIGTERM ends the first with 143 and a checkpoint."""
    out = tmp_path / "run"
    args = arguments(teacher, out, "--set", "training.checkpoint_every=1000", iterations=400)
    with started(args) as first:
        wait_for_steps(out, 2)
        told(call(*args), 2, "Another di4c is writing to", "choose another --out")
        told(call(*args, "--force"), 2, "Another di4c is writing to")
        assert list(tmp_path.iterdir()) == [out], "nothing was moved aside"
        first.send_signal(signal.SIGTERM)
        _, said = first.communicate(timeout=PATIENCE)
    assert first.returncode == 143, said
    assert "Traceback" not in said and "Run the same command again" in said.splitlines()[-1]
    done = len(read_rows(out / "metrics.jsonl"))
    assert [path.name for path in (out / "round-1" / "checkpoints").iterdir()] == [f"step-{done:08d}"]
    assert done < 400


def test_common_exit_code_is_that_of_the_signal() -> None:
    """Together they end as one would: with the signal's code, whichever process heard of it first."""
    for codes, verdict in (
        ((143, 143), 143),
        ((143, 130), 143),
        ((130, 130), 130),
        ((1, 143), 143),
        ((1, 1), 1),
        ((-2, 0), 130),
    ):
        assert common_exit_code(dict(enumerate(codes)), first=0, stopped=True) == verdict


@pytest.mark.slow
@pytest.mark.parametrize("way", ["deleted", "moved"])
def test_distill_notices_a_deleted_or_moved_folder(teacher: Path, tmp_path: Path, way: str) -> None:
    out = tmp_path / "run"
    recipe = small_recipe(teacher)

    def vanish(row: dict[str, Any]) -> None:
        if row["step"] == 4 and way == "deleted":
            shutil.rmtree(out)
        elif row["step"] == 4:
            out.rename(tmp_path / "elsewhere")

    with pytest.raises(Failure, match="was deleted or moved while the run was writing to it") as caught:
        distill(recipe, out, RunOptions(report=vanish))
    assert caught.value.exit_code == 1
    assert not out.exists(), "nothing is made again behind the user's back"
    if way == "moved":
        distill(recipe, tmp_path / "elsewhere", RunOptions())
        distill(recipe, tmp_path / "whole", RunOptions())
        assert same(weights(tmp_path / "elsewhere"), weights(tmp_path / "whole"))


@pytest.mark.slow
def test_distill_finishes_after_a_deleted_codec_is_restored(tmp_path: Path, teacher: Path) -> None:
    """The teacher's folder loses a file while the student trains; its weights are in memory, its codec is not."""
    model, out = tmp_path / "text", tmp_path / "run"
    tokenizer = tmp_path / "tokenizer.json"
    tokenizer.write_bytes(embedded.asset("text-units.json").read_bytes())
    assert call("convert", "words", model, "--tokenizer", tokenizer).exit_code == 0
    (codec,) = set(model.iterdir()) - {model / name for name in ("README.md", "config.json", "model.safetensors")}
    shutil.copyfile(codec, tmp_path / "kept")
    recipe = small_recipe(model, data="teacher", method__reference_steps=2)

    def vanish(row: dict[str, Any]) -> None:
        if row["step"] == 6:
            codec.unlink()

    with pytest.raises(FileNotFoundError) as caught:
        distill(recipe, out, RunOptions(report=vanish))
    assert "put it back and run again" in str(machine_fault(caught.value))
    shutil.copyfile(tmp_path / "kept", codec)
    distill(recipe, out, RunOptions())
    assert (out / "student" / codec.name).is_file()


@pytest.mark.slow
def test_command_works_in_a_deleted_folder(tmp_path: Path) -> None:
    """A shell may stand in a folder that is gone."""
    gone = tmp_path / "gone"
    gone.mkdir()
    script = 'cd "$1" && rmdir "$1" && shift && exec "$@"'
    done = subprocess.run(
        ["bash", "-c", script, "bash", str(gone), *command("recipes")],
        capture_output=True,
        text=True,
        env={**os.environ, "PYTHONPATH": os.pathsep.join(map(os.path.abspath, _paths()))},
    )
    assert "Traceback" not in done.stderr and done.returncode == 0, done.stderr


def _paths() -> list[str]:
    import di4c_cli

    return [str(Path(di4c_cli.__file__).parents[1])]
