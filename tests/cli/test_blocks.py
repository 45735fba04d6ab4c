"""`--block` of `eval` and `bench-latency`: the meaning and the checks of `sample --block`, tokens per pass reported."""

from __future__ import annotations

import json
from pathlib import Path

import pytest
from typer.testing import CliRunner

from di4c_cli.cli.app import app
from di4c_cli.evaluation.results import Results

LENGTH, HALF = 16, 8
"""Of the toy task `words`."""
MISTAKES = [
    (["--teacher", "words", "--block", "0"], "Blocks of 0 positions are impossible."),
    (["--teacher", "pixels", "--block", "2"], "Blocks need a masked process."),
    (["--teacher", "words", "--block", str(HALF), "--steps", "3"], "3 steps cannot be divided over 2 blocks"),
]


def run(*words: str) -> tuple[int, str, str]:
    done = CliRunner().invoke(app, list(words))
    return done.exit_code, done.stdout, done.stderr


@pytest.fixture(autouse=True)
def _elsewhere(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)


def test_eval_fills_the_blocks_that_sample_fills() -> None:
    same = ("--teacher", "words", "--steps", "4", "-n", "6", "--block", str(HALF))
    code, _, said = run("eval", *same, "--out", "out")
    assert code == 0, said
    (cell,) = Results.model_validate_json(Path("out/results.json").read_bytes()).cells
    assert cell.settings["block"] == HALF
    code, out, said = run("sample", *same, "--json")
    assert code == 0, said
    told = json.loads(out)
    assert cell.samples == told["samples"] and cell.tokens_per_pass == pytest.approx(told["tokens_per_pass"], abs=1e-3)
    code, _, said = run("eval", *same[:-2], "--out", "whole")
    assert Results.model_validate_json(Path("whole/results.json").read_bytes()).cells[0].samples != cell.samples


def test_eval_with_blocks_has_no_hand_off() -> None:
    words = ("--student", "words-student", "--steps", "4", "-n", "50", "--block", "8", "--out", "out")
    code, _, said = run("eval", *words)
    assert code == 0, said
    # a step that reveals nothing calls no network
    for cell in Results.model_validate_json(Path("out/results.json").read_bytes()).cells:
        assert "hybrid" not in cell.settings and LENGTH / 4 <= cell.tokens_per_pass < LENGTH / 3


def test_bench_latency_times_blocks() -> None:
    words = ("--teacher", "words", "--steps", "2", "--block", str(HALF), "--batch-size", "2", "--threads", "1")
    code, out, said = run("bench-latency", *words)
    assert code == 0, said
    (found,) = json.loads(out.strip().splitlines()[-1])["results"]
    assert found["settings"]["block"] == HALF and "paper" not in found
    assert [side["tokens_per_pass"] for side in found["sides"].values()] == [LENGTH / 2] * 2


@pytest.mark.parametrize("command", ["sample", "eval", "bench-latency"])
@pytest.mark.parametrize(("words", "reason"), MISTAKES)
def test_impossible_blocks_are_rejected_alike(command: str, words: list[str], reason: str) -> None:
    code, out, said = run(command, *words)
    assert code == 2 and reason in said and out == ""


@pytest.mark.parametrize(
    ("words", "reason"),
    [
        (["--protocol", "words-frontier"], "A protocol fixes its own steps, temperatures and blocks."),
        (["--samples", "texts.txt"], "takes no --block"),
    ],
)
def test_eval_takes_no_blocks_where_none_can_be(words: list[str], reason: str) -> None:
    code, _, said = run("eval", *words, "--block", "4")
    assert code == 2 and reason in said
