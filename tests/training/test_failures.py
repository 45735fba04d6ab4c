"""Signals, a full disk, numbers that are not finite: the run stops as it should and can be resumed."""

from __future__ import annotations

import os
import shutil
import signal
import subprocess
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
import torch
from safetensors.torch import load_file

from di4c_cli.errors import Failure, UserError
from di4c_cli.methods.base import Loss
from di4c_cli.methods.di4c import Di4C
from di4c_cli.methods.noised_batch import TrainingSamples
from di4c_cli.training.metrics import read_rows
from di4c_cli.training.run import RunOptions, distill
from tests.helpers.small_run import PATIENCE, arguments, run, same, small_recipe, started, wait_for_steps, weights


@pytest.mark.slow
def test_ctrl_c_finishes_the_step_and_says_how_to_go_on(teacher: Path, tmp_path: Path) -> None:
    args = arguments(teacher, tmp_path / "run", "--set", "training.checkpoint_every=1000", iterations=60)
    with started(args) as process:
        wait_for_steps(tmp_path / "run", 2)
        process.send_signal(signal.SIGINT)
        _, said = process.communicate(timeout=PATIENCE)
    assert process.returncode == 130
    done = len(read_rows(tmp_path / "run" / "metrics.jsonl"))
    assert f"Stopped after step {done} of 60" in said
    assert "Run the same command again" in said.strip().splitlines()[-1]
    assert (tmp_path / "run" / "round-1" / "checkpoints" / f"step-{done:08d}").is_dir()
    assert run(args)[0] == 0
    rows = read_rows(tmp_path / "run" / "metrics.jsonl")
    assert [row["step"] for row in rows] == list(range(1, 61))


@pytest.mark.slow
def test_run_ends_at_once_after_a_second_ctrl_c(teacher: Path, tmp_path: Path) -> None:
    slow = ("--batch", "128", "--latents", "16", "--set", "training.checkpoint_every=1")
    with started([*arguments(teacher, tmp_path / "run", iterations=500), *slow]) as process:
        wait_for_steps(tmp_path / "run", 2)
        process.send_signal(signal.SIGINT)
        time.sleep(0.5)
        process.send_signal(signal.SIGINT)
        _, said = process.communicate(timeout=PATIENCE)
    assert process.returncode == 130
    assert "stopped at once" in said or "a checkpoint is written" in said
    newest = sorted((tmp_path / "run" / "round-1" / "checkpoints").glob("step-*"))[-1]
    assert load_file(newest / "model.safetensors") and load_file(newest / "ema.safetensors")


@pytest.fixture
def small_disk(tmp_path: Path) -> Iterator[Path]:
    """A file system of 5 MB, where that may be mounted."""
    folder = tmp_path / "disk"
    folder.mkdir()
    command = ["mount", "-t", "tmpfs", "-o", "size=5m", "tmpfs", str(folder)]
    if os.geteuid() != 0 or not shutil.which("mount") or subprocess.run(command, capture_output=True).returncode:
        pytest.skip("a small file system cannot be mounted here")
    try:
        yield folder
    finally:
        subprocess.run(["umount", "-l", str(folder)], check=False)


@pytest.mark.slow
def test_run_on_a_full_disk_ends_in_one_sentence_and_loses_nothing(teacher: Path, small_disk: Path) -> None:
    out = small_disk / "run"
    args = arguments(teacher, out, "--set", "training.keep=50", "--set", "training.checkpoint_every=2", iterations=40)
    code, said = run(args)
    assert code == 1
    lines = said.strip().splitlines()
    assert len(lines) == 1 and "The disk is full" in lines[0] and "run the same command again" in lines[0]
    kept = sorted((out / "round-1" / "checkpoints").glob("step-*"))
    assert kept and not list((out / "round-1" / "checkpoints").glob(".*.part"))
    for old in kept[:-1]:
        shutil.rmtree(old)
    code, said = run([*args, "--set", "training.keep=1"])
    assert code == 0, said
    assert [row["step"] for row in read_rows(out / "metrics.jsonl")] == list(range(1, 41))
    distill(small_recipe(teacher, training__iterations=40), small_disk.parent / "whole", RunOptions())
    assert same(weights(out), weights(small_disk.parent / "whole"))


def break_loss(monkeypatch: pytest.MonkeyPatch, steps: set[int], size: int = 4) -> None:
    """Make the loss of Di4C not a number in some steps."""
    right = Di4C.loss

    def loss(self: Di4C, batch: TrainingSamples, *rest: Any) -> Loss:
        found = right(self, batch, *rest)
        if batch.index[0] // size + 1 in steps:
            found.total = found.total * torch.nan
        return found

    monkeypatch.setattr(Di4C, "loss", loss)


@pytest.mark.slow
def test_training_loop_skips_and_counts_a_bad_step(
    teacher: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    break_loss(monkeypatch, {2, 5})
    distill(small_recipe(teacher), tmp_path / "run", RunOptions())
    rows = read_rows(tmp_path / "run" / "metrics.jsonl")
    assert [row["step"] for row in rows if row["skipped"]] == [2, 5]
    assert [row["step"] for row in rows if row["loss"] is None] == [2, 5]
    assert all(bool(torch.isfinite(value).all()) for value in weights(tmp_path / "run").values())


def test_training_loop_stops_after_many_bad_steps_with_a_diagnosis(
    teacher: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    break_loss(monkeypatch, set(range(5, 100)))
    recipe = small_recipe(teacher, training__max_bad_steps=4, training__iterations=50)
    with pytest.raises(Failure, match=r"not finite for 4 steps in a row, from step 5 of round 1") as caught:
        distill(recipe, tmp_path / "run", RunOptions())
    assert "step-00000006, with the weights of step 4" in caught.value.message
    assert caught.value.exit_code == 1
    assert len(read_rows(tmp_path / "run" / "metrics.jsonl")) == 8


@pytest.mark.slow
def test_resume_names_a_damaged_checkpoint(teacher: Path, tmp_path: Path) -> None:
    recipe, out = small_recipe(teacher), tmp_path / "run"
    distill(recipe, out, RunOptions())
    shutil.rmtree(out / "student"), shutil.rmtree(out / "round-1" / "student")
    broken = out / "round-1" / "checkpoints" / "step-00000006"
    (broken / "optimizer.pt").write_bytes(b"PK")
    with pytest.raises(Failure, match=r"step-00000006 is damaged"):
        distill(recipe, out, RunOptions())
    shutil.rmtree(broken)
    distill(recipe, out, RunOptions())
    assert (out / "student" / "model.safetensors").is_file()


@pytest.mark.slow
@pytest.mark.parametrize(
    "error",
    [
        torch.OutOfMemoryError("CUDA out of memory. Tried to allocate 2 GiB"),
        PermissionError(13, "Permission denied", "model.safetensors"),
        OSError(24, "Too many open files"),
    ],
    ids=lambda error: type(error).__name__,
)
def test_resume_does_not_call_a_refused_read_damage(
    teacher: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, error: Exception
) -> None:
    recipe, out = small_recipe(teacher), tmp_path / "run"
    distill(recipe, out, RunOptions())
    shutil.rmtree(out / "student"), shutil.rmtree(out / "round-1" / "student")

    def refuse(*args: object) -> None:
        raise error

    monkeypatch.setattr("di4c_cli.training.checkpoint.CheckpointedObjects.load_states", refuse)
    with pytest.raises(type(error)) as caught:
        distill(recipe, out, RunOptions())
    assert caught.value is error


def test_more_reading_threads_than_the_cores_allow_are_rejected(
    teacher: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(os, "cpu_count", lambda: 2)
    with pytest.raises(UserError, match="1024 threads are more"):
        distill(small_recipe(teacher, training__workers=1024), tmp_path / "run", RunOptions())
