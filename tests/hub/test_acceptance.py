"""`di4c distill --teacher sdtt-7 --rounds 2` as a user types it, with a Hub on loopback."""

from __future__ import annotations

import json
from pathlib import Path

import pytest
import torch

from di4c_cli import load
from di4c_cli.publish import publish
from di4c_cli.teacher import recipe_for
from tests.helpers.standin import BRANCH, Run, StandIn

TEXT = "Sphinx of black quartz, judge my vow! The five boxing wizards jump quickly. 0123456789\n"
RUN = Path("runs/sdtt-7-sdtt-7-s0")


@pytest.mark.slow
def test_distill_two_rounds_then_sample_text(hub: StandIn, here: Path, run: Run, tmp_path: Path) -> None:
    (tmp_path / "file.txt").write_text(TEXT * 30)
    command = ["distill", "--teacher", "sdtt-7", "--rounds", "2"]
    done = run(*command, "--iterations", "2", "--data", "file.txt")
    assert done.returncode == 0, done.stderr
    for part in ("round-1/student", "round-2/student", "student"):
        found = {path.name for path in (tmp_path / RUN / part).iterdir()}
        assert {"config.json", "model.safetensors", "README.md"} <= found
    sampled = run("sample", "--steps", "4")
    assert sampled.returncode == 0 and sampled.stdout.strip(), sampled.stderr

    student = load(str(tmp_path / RUN))
    assert student.config.kind == "student" and student.config.latent is not None
    history = json.dumps(student.config.provenance)
    assert hub.repositories["jdeschena/sdtt"].branches[BRANCH] in history, "the teacher's commit is recorded"
    publish(tmp_path / RUN, "me/student")
    back = load("me/student")
    x = torch.full((2, back.denoiser.length), back.denoiser.symbols)
    assert torch.equal(back.log_probs(x, 1.0, seed=1), student.log_probs(x, 1.0, seed=1))
    assert recipe_for("me/student") == "sdtt-7", "it can be distilled further"
    card = hub.repositories["me/student"].commits[hub.repositories["me/student"].branches["main"]]["README.md"]
    assert b"base_model: jdeschena/sdtt" in card and b"license: apache-2.0" in card


@pytest.mark.slow
def test_distill_without_a_network(run: Run, tmp_path: Path) -> None:
    done = run("distill", "--teacher", "sdtt-7", HF_ENDPOINT="http://127.0.0.1:9")
    assert done.returncode == 1 and done.stdout == ""
    (sentence,) = done.stderr.strip().splitlines()
    assert "jdeschena/sdtt" in sentence and "fashion" in sentence
    left = [path for path in tmp_path.rglob("*") if path.is_file()]
    assert left == [], "nothing half-written, neither in the cache nor as a run"
