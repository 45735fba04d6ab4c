"""`python -m benchmarks.train`: a real measurement of a tiny network, its last line, and mistakes."""

from __future__ import annotations

import json
from pathlib import Path

import pytest
import typer
from typer.testing import CliRunner

from benchmarks import train

TINY = ["--length", "8", "--symbols", "20", "--depth", "1", "--width", "16", "--heads", "2", "--latents", "2"]
APP = typer.Typer()
APP.command()(train.main)


@pytest.mark.slow
def test_train_measures_all_sides(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("PYTHONPATH", str(Path(train.__file__).parents[1]))
    ran = CliRunner().invoke(APP, [*TINY, "--runs", "1", "--sides", ",".join(train.SIDES), "--threads", "1"])
    assert ran.exit_code == 0, ran.output
    last = json.loads(ran.stdout.splitlines()[-1])
    assert list(last["sides"]) == list(train.SIDES) and last["bench"] == "train"
    assert all(side["seconds"] > 0 and side["peak_bytes"] > 1e6 for side in last["sides"].values())
    assert last["ours_over_body_cpu"] > 0 and last["dense_over_ours_cpu"] > 0


def test_train_takes_sizes_from_the_published_networks() -> None:
    assert train.SHAPES["maskgit"].labels == 1000 and train.SHAPES["sdtt"].labels is None
    changed = train.resized("sdtt", {"symbols": 20, "width": None}, latents=3, batch=None)
    assert changed.network["symbols"] == changed.process["symbols"] == 20
    assert changed.network["width"] == 768 and changed.latents == 3 and changed.batch == 1


MISTAKES = [
    (["--width", "100", "--sides", "ours"], "must be a multiple"),
    (["--shape", "mnist"], "unknown"),
    (["--channels", "64"], "has no --channels"),
    (["--sides", "ours,ours"], "not possible"),
]


@pytest.mark.slow
@pytest.mark.parametrize(("words", "reason"), MISTAKES)
def test_train_reports_a_mistake_in_one_sentence(
    monkeypatch: pytest.MonkeyPatch, words: list[str], reason: str
) -> None:
    monkeypatch.setenv("PYTHONPATH", str(Path(train.__file__).parents[1]))
    ran = CliRunner().invoke(APP, ["--length", "8", "--runs", "1", "--warmup", "0", *words])
    assert ran.exit_code == 2 and reason in ran.output and "Memory" not in ran.output
    assert len(ran.stderr.strip().splitlines()) == 1
