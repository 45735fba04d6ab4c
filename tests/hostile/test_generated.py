"""A sample of the hostile round, and the round's own oracle; `python -m tests.hostile` runs thousands of cases."""

from __future__ import annotations

import json
import subprocess
import sys
from dataclasses import replace
from pathlib import Path

import pytest

from tests.hostile import cases, grammar
from tests.hostile.oracle import problems
from tests.hostile.sandbox import BROKEN, Outcome

CASES = 58
"""Every target as often as its share says."""
SEED = "suite"
GOOD = Outcome(
    words=["sample"],
    code=2,
    stdout="",
    stderr="di4c: There is no such model. Name another.\n",
    peak=2**28,
    seconds=1.0,
    stopped=False,
    late=False,
    terminal=False,
    before={"in/a": "1", "tmp": "d"},
    after={"in/a": "1", "tmp": "d"},
)


@pytest.mark.slow
def test_commands_survive_a_sample_of_the_round(tmp_path: Path) -> None:
    """In a process of its own, whose copies have no threads of the test runner."""
    failures = tmp_path / "failures.jsonl"
    words = ["--cases", str(CASES), "--seed", SEED, "--workers", "1", "--failures", str(failures)]
    command = [sys.executable, "-m", "tests.hostile", *words]
    result = subprocess.run(command, capture_output=True, text=True, check=False, timeout=1200)
    assert result.returncode == 0, failures.read_text() if failures.exists() else result.stderr
    found = json.loads(result.stdout.splitlines()[-1])
    assert found["cases"] == CASES and not found["missing"]
    assert found["refused"] > CASES // 4 and found["worked"] > CASES // 8, "cases must hit, and some be harmless"


def test_grid_has_every_option_of_every_command() -> None:
    pairs = grammar.grid()
    names = {(one.command, one.name) for one, _ in pairs}
    assert {command for command, _ in names if command} >= set(grammar.BASES)
    assert ("sample", "--steps") in names and ("convert", "source") in names and ("recipes show", "name") in names
    assert len(pairs) > 5000


def test_every_target_has_its_share_of_the_cases() -> None:
    order = [cases.choose(number) for number in range(sum(cases.shares().values()))]
    assert {name: order.count(name) for name in cases.shares()} == cases.shares()


def test_everything_of_a_stranger_has_a_target() -> None:
    strangers = ("model folder", "Hub repository", "recipe", "run", "result", "dataset", "tokenizer")
    assert all(cases.shares()[name] > 0 for name in strangers)


def test_rounds_with_another_seed_have_other_cases(tmp_path: Path) -> None:
    def stories(seed: str) -> list[str]:
        return [cases.run("faithful", seed, number, tmp_path, tmp_path / "work").story for number in range(6)]

    assert stories("one") == stories("one") != stories("another")


@pytest.mark.parametrize(
    ("change", "words"),
    [
        ({"stderr": 'Traceback (most recent call last):\n  File "x"\n'}, "traceback"),
        ({"code": BROKEN}, "traceback"),
        ({"stderr": "di4c: Unexpected error, probably a bug in di4c: KeyError.\n", "code": 1}, "unexpected exception"),
        ({"code": 134}, "exit code 134"),
        ({"code": -9}, "exit code -9"),
        ({"stderr": ""}, "no sentence"),
        ({"stderr": "di4c: \x1b[31mred.\n"}, "characters"),
        ({"stdout": "a\rb"}, "characters"),
        ({"stdout": "\u202ea"}, "characters"),
        ({"stdout": "\x1b]8;;http://127.0.0.1\x1b\\x", "terminal": True}, "characters"),
        ({"stdout": "\x1b[8mhidden", "terminal": True}, "characters"),
        ({"seconds": 31.0}, "over 30 s"),
        ({"late": True}, "no end"),
        ({"peak": 3 * 2**30}, "over 2 GB"),
        ({"stderr": "di4c: Out of memory on the CPU. Use less.\n", "code": 1}, "over 2 GB"),
        ({"left": ["python"]}, "processes left"),
        ({"after": {"in/a": "2", "tmp": "d"}}, "changed"),
        ({"after": {"tmp": "d"}}, "changed"),
        ({"after": {**GOOD.before, "in/b": "1"}}, "stray files"),
        ({"after": {**GOOD.before, "tmp/x": "1"}}, "temporary files left"),
    ],
)
def test_oracle_sees_every_broken_promise(change: dict[str, object], words: str) -> None:
    assert problems(GOOD) == []
    found = problems(replace(GOOD, **change))  # type: ignore[arg-type]
    assert len(found) == 1 and words in found[0], found


def test_oracle_accepts_colours_of_rich_and_replaced_outputs() -> None:
    shown = replace(GOOD, code=0, stdout="\x1b[1mbold\x1b[0m\x1b[?25l\r\n", terminal=True, stderr="")
    assert problems(shown) == []
    written = replace(GOOD, code=0, after={"in/a": "2", "tmp": "d", "out/x": "1"})
    assert problems(written, replaced=("in/a",)) == [] and problems(written) != []
