"""The mutator: every mutant is one change that compiles, the sample is seeded, the interval is Wilson's."""

from __future__ import annotations

import ast
import json
import sys
from pathlib import Path

import pytest

sys.path.insert(0, str(Path(__file__).parent))
import mutate
from mutants import Mutant, mutants

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


def test_every_kind_of_change(tmp_path: Path) -> None:
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


def test_the_sample_is_seeded_and_spread() -> None:
    first, again, other = (mutate.chosen(["process"], 30, seed) for seed in (0, 0, 1))
    assert first == again != other and len(first) == 30
    assert len({one.path.name for one in first}) >= 3
    for one in first:
        compile(one.source(), str(one.path), "exec")


def test_every_mapped_test_exists() -> None:
    for paths in mutate.TESTS.values():
        assert all((mutate.ROOT / path).exists() for path in paths)


@pytest.mark.parametrize(
    ("killed", "total", "low", "high"), [(340, 400, 0.8117, 0.8817), (10, 10, 0.7225, 1.0), (0, 0, 0, 1)]
)
def test_wilson(killed: int, total: int, low: float, high: float) -> None:
    assert mutate.wilson(killed, total) == pytest.approx((low, high), abs=5e-4)


def test_the_report(capsys: pytest.CaptureFixture[str]) -> None:
    mutant = Mutant(mutate.ROOT / "di4c_cli" / "process" / "base.py", 12, 4, "Add -> Sub")
    done = [
        mutate.Trial(mutant, outcome, 1.0) for outcome in ["killed"] * 40 + ["timeout"] * 9 + ["survived"]
    ]
    assert mutate.report(done, 0.8) == 0
    lines = capsys.readouterr().out.strip().splitlines()
    assert lines[0].startswith("killed 49 of 50: 98.0 % [89.5, 99.6]")
    assert "survived  di4c_cli/process/base.py:12:4  Add -> Sub" in lines[1]
    assert json.loads(lines[-1])["survivors"] == [["di4c_cli/process/base.py", 12, 4, "Add -> Sub"]]
    assert mutate.report(done, 0.95) == 1
