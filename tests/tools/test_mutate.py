"""The mutator: every mutant is one change that compiles, the sample is seeded, the interval is Wilson's."""

from __future__ import annotations

import ast
import json
import os
import signal
import sys
from pathlib import Path

import pytest

from tools.mutation import mutate
from tools.mutation.mutants import Mutant, mutants
from tools.mutation.warm import limit

SOURCE = '''
"""Doc 1."""
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from torch import Tensor

LIMIT: int = 3


def f(x: int, y: float = 0.5, *, up: bool = True) -> float:
    """Doc 2."""
    if x < 3 and up:
        raise ValueError(f"{x + 1} is 4")
    assert x != 7
    return -max(x, 1) + sorted([x], reverse=True)[0] * y
'''


def test_mutants_cover_every_kind_of_change(tmp_path: Path) -> None:
    path = tmp_path / "code.py"
    path.write_text(SOURCE)
    found = mutants(path)
    assert sorted(one.change for one in found) == sorted(
        [
            "3 -> 4",  # LIMIT
            "0.5 -> 1.0",
            "condition negated",
            "And -> Or",
            "Lt -> LtE",
            "3 -> 4",  # x < 3
            "Add -> Sub",
            "USub dropped",
            "max -> min",
            "1 -> 2",
            "Mult -> Div",
            "reverse= left out",
            "True -> False",  # reverse
            "0 -> 1",
        ]
    )
    plain = ast.dump(ast.parse(ast.unparse(ast.parse(SOURCE))))
    sources = [one.source() for one in found]
    for source in sources:
        assert ast.dump(ast.parse(source)) != plain and "is 4" in source and "x != 7" in source
    assert len(set(sources)) == len(found)


def test_chosen_sample_is_seeded_and_spread() -> None:
    first, again, other = (mutate.chosen(["process", "sampler"], 30, seed) for seed in (0, 0, 1))
    assert first == again != other and len(first) == 30
    assert len({one.path.name for one in first}) >= 3
    for one in first:
        compile(one.source(), str(one.path), "exec")


def test_mapped_folders_and_tests_exist() -> None:
    for folder, paths in mutate.TESTS.items():
        assert (mutate.ROOT / "di4c_cli" / folder).is_dir(), folder
        assert [path for path in paths if not (mutate.ROOT / path).exists()] == []


@pytest.mark.parametrize(
    ("killed", "total", "low", "high"), [(340, 400, 0.8117, 0.8817), (10, 10, 0.7225, 1.0), (0, 0, 0, 1)]
)
def test_wilson_gives_the_interval(killed: int, total: int, low: float, high: float) -> None:
    assert mutate.wilson(killed, total) == pytest.approx((low, high), abs=5e-4)


def test_report_prints_share_survivors_and_json(capsys: pytest.CaptureFixture[str]) -> None:
    mutant = Mutant(mutate.ROOT / "di4c_cli" / "process" / "base.py", 12, 4, "Add -> Sub")
    done = [mutate.Trial(mutant, outcome, 1.0) for outcome in ["killed"] * 40 + ["timeout"] * 9 + ["survived"]]
    assert mutate.report(done, 0.8) == 0
    lines = capsys.readouterr().out.strip().splitlines()
    assert lines[0].startswith("killed 49 of 50: 98.0 % [89.5, 99.6]")
    assert "survived  di4c_cli/process/base.py:12:4  Add -> Sub" in lines[1]
    assert json.loads(lines[-1])["survivors"] == [["di4c_cli/process/base.py", 12, 4, "Add -> Sub"]]
    assert mutate.report(done, 0.95) == 1


def test_killed_before_finds_what_an_earlier_run_killed() -> None:
    """Two changes with one label count as killed when both were."""
    path = mutate.ROOT / "di4c_cli" / "process" / "base.py"
    first, second, other = (Mutant(path, 12, 4, change) for change in ("Add -> Sub", "0 -> 1", "1 -> 2"))
    twin = Mutant(path, 12, 4, "Add -> Sub", site=9)
    trials = [mutate.Trial(first, "killed", 1.0), mutate.Trial(second, "timeout", 1.0)]
    trials.append(mutate.Trial(other, "survived", 1.0))
    lines = "\n".join(f"{number}/3 {trial.line()}" for number, trial in enumerate(trials))
    assert mutate.killed_before([first, second, other], lines) == [first, second]
    assert mutate.killed_before([first, twin, second], lines) == [second]
    assert mutate.killed_before([first], "") == []


CODE = """
STEP = 2


def doubled(x):
    return x * 2


def unused(x):
    return x + 1


def grown(n):
    return n + STEP
"""
TEST = """
import pytest
from di4c_cli.process.thing import doubled, grown


@pytest.mark.parametrize("n", [grown(1)])
def test_collected_with_a_call(n):
    assert n == 3


def test_called():
    assert doubled(3) == 6
"""


def measured_by_coverage() -> bool:
    """Whether somebody else looks at every call already."""
    coverage = sys.modules.get("coverage")
    return coverage is not None and coverage.Coverage.current() is not None


@pytest.mark.slow
@pytest.mark.skipif(measured_by_coverage(), reason="pytest --cov takes the place of the mutator's own watch")
def test_trials_run_in_forks_and_fresh_processes(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """A small project: what a test calls, what none calls, what only importing shows."""
    monkeypatch.setattr(mutate, "ROOT", tmp_path)
    monkeypatch.setattr(mutate, "TESTS", {"process": ("tests/process",)})
    for name, text in {
        "di4c_cli/process/thing.py": CODE,
        "di4c_cli/process/__init__.py": "",
        "di4c_cli/__init__.py": "",
        "tests/process/test_thing.py": TEST,
        "recipes/README": "",
        "pyproject.toml": "[tool.pytest.ini_options]\n",
    }.items():
        (tmp_path / name).parent.mkdir(parents=True, exist_ok=True)
        (tmp_path / name).write_text(text)
    picked = mutate.chosen(["process"], 100, 0)
    done = {(one.mutant.line, one.mutant.change): one.outcome for one in mutate.trials(picked, 2, 3.0, 60.0, None)}
    assert done == {
        (2, "2 -> 3"): "killed",
        (6, "Mult -> Div"): "killed",
        (6, "2 -> 3"): "killed",
        (10, "Add -> Sub"): "survived",
        (10, "1 -> 2"): "survived",
        (14, "Add -> Sub"): "killed",
    }


@pytest.mark.slow
def test_limit_ends_a_process_out_of_processor_time() -> None:
    pid = os.fork()
    if pid == 0:
        limit(0)
        while True:
            pass
    _, status = os.waitpid(pid, 0)
    assert os.WIFSIGNALED(status) and os.WTERMSIG(status) == signal.SIGXCPU
