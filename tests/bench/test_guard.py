"""`make bench`: what a regression is, the table, the last line and the exit code."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest
import typer
from typer.main import get_command

from benchmarks import guard, latency, train

SMALL: dict[str, Any] = {
    "tolerance": 0.25,
    "benchmarks": {
        "a": {"command": ["benchmarks.latency"], "ratios": {"overhead": {"worse": "higher", "value": 1.0}}},
        "b": {"command": ["benchmarks.train"], "ratios": {"dense_over_ours": {"worse": "lower", "value": 2.0}}},
    },
}


def play(tmp_path: Path, overhead: tuple[float, float], dense: float, *words: str) -> tuple[int, Path]:
    """The guard with benchmarks that print these figures: the interval's ends, and a bare ratio."""
    path = tmp_path / "baseline.json"
    path.write_text(json.dumps(SMALL))
    low, high = overhead
    answers = {
        "benchmarks.latency": {"results": [{"overhead": {"ratio": (low + high) / 2, "low": low, "high": high}}]},
        "benchmarks.train": {"dense_over_ours": dense},
    }
    return guard.main(list(words), lambda command: answers[command[0]], path), path


@pytest.mark.parametrize(
    ("overhead", "dense", "regressed"),
    [
        ((0.9, 1.1), 2.0, []),
        ((1.2, 1.6), 1.61, []),  # part of the interval is allowed
        ((1.26, 1.6), 2.0, ["a: overhead"]),
        ((0.5, 0.6), 9.0, []),  # better is never a regression
        ((0.9, 1.1), 1.59, ["b: dense_over_ours"]),
    ],
)
def test_guard_finds_regressions(
    tmp_path: Path,
    capsys: pytest.CaptureFixture[str],
    overhead: tuple[float, float],
    dense: float,
    regressed: list[str],
) -> None:
    code, _ = play(tmp_path, overhead, dense)
    lines = capsys.readouterr().out.strip().splitlines()
    assert code == (1 if regressed else 0)
    assert json.loads(lines[-1])["regressed"] == regressed
    assert sum("REGRESSED" in line for line in lines) == len(regressed)


def test_guard_update_writes_only_ratios(tmp_path: Path) -> None:
    code, path = play(tmp_path, (1.4, 1.6), 1.0, "--update")
    written = json.loads(path.read_text())
    assert code == 0
    assert written["benchmarks"]["a"]["ratios"]["overhead"] == {"worse": "higher", "value": 1.5}
    assert written["benchmarks"]["b"]["command"] == ["benchmarks.train"]


def test_guard_only_runs_one_benchmark(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert play(tmp_path, (9.0, 9.1), 2.0, "--only", "b")[0] == 0
    with pytest.raises(SystemExit):
        play(tmp_path, (1.0, 1.0), 2.0, "--only", "c")
    assert "unknown benchmark c" in capsys.readouterr().err


def test_find_divides_two_figures() -> None:
    assert guard.find({"a": {"x": 30}, "y": 60}, "a.x/y") == (0.5, 0.5, 0.5)


def test_baseline_is_complete_and_its_commands_are_valid() -> None:
    """It is complete, and the benchmarks accept the options of its commands."""
    modules = {"benchmarks.latency": latency, "benchmarks.train": train}
    baseline = json.loads(guard.BASELINE.read_text(encoding="utf-8"))
    assert 0 < baseline["tolerance"] <= 0.5
    for benchmark in baseline["benchmarks"].values():
        module, *words = benchmark["command"]
        program = typer.Typer()
        program.command()(modules[module].main)
        get_command(program).make_context(module, words)
        for rule in benchmark["ratios"].values():
            assert rule["value"] > 0 and rule["worse"] in ("higher", "lower")
