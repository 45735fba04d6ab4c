"""Mark tests that take long as slow, from the durations of a whole run.

    python -m pytest --durations=0 --durations-min=0 > durations.txt
    python -m tools.mark_slow durations.txt --over 1.0

Writes `@pytest.mark.slow` above every test function of which one case needed more than `--over` seconds or all cases
more than `--together`. The quickest test of a file stays unmarked unless it needs more than `--most` seconds, so that
the quick set tries something of everything. A test that is marked already stays marked.
"""

from __future__ import annotations

import argparse
import ast
import re
import sys
from collections import defaultdict
from dataclasses import dataclass
from pathlib import Path

ROOT = Path(__file__).parents[1]
MARK = "@pytest.mark.slow"
LINE = re.compile(r"\s*([\d.]+)s (?:call|setup)\s+(\S+?\.py)::([\w:]+)(.*)")
Function = ast.FunctionDef | ast.AsyncFunctionDef


@dataclass
class Cost:
    """Seconds of a test function, fixtures included: its slowest case and all of its cases."""

    slowest: float = 0.0
    together: float = 0.0


@dataclass(frozen=True)
class Limits:
    """Seconds from which a function is slow, by one case or by all; seconds of a file's quickest test."""

    over: float
    together: float
    most: float


def read_durations(text: str) -> dict[str, dict[str, Cost]]:
    """What each test function of each file took."""
    cases: dict[tuple[str, str, str], float] = defaultdict(float)
    for line in text.splitlines():
        if match := LINE.match(line):
            seconds, path, function, case = match.groups()
            cases[path, function, case] += float(seconds)
    found: dict[str, dict[str, Cost]] = defaultdict(dict)
    for (path, function, _), seconds in cases.items():
        cost = found[path].setdefault(function, Cost())
        cost.slowest, cost.together = max(cost.slowest, seconds), cost.together + seconds
    return dict(found)


def slow_functions(costs: dict[str, Cost], limits: Limits) -> set[str]:
    """The functions of one file to mark."""
    slow = {name for name, cost in costs.items() if cost.slowest > limits.over or cost.together > limits.together}
    quickest = min(costs, key=lambda name: costs[name].together)
    return slow - {quickest} if slow == set(costs) and costs[quickest].together <= limits.most else slow


def is_marked(source: str) -> bool:
    """Whether the whole file is marked."""
    return re.search(r"^pytestmark = .*\bslow\b", source, re.M) is not None


def marked(source: str, names: set[str]) -> str:
    """The file's text with marks above these functions (`name` or `Class::name`)."""
    if not names or is_marked(source):
        return source
    lines = source.splitlines(keepends=True)
    tree = ast.parse(source)
    places = {}
    for node in tree.body:
        inside = node.body if isinstance(node, ast.ClassDef) else [node]
        prefix = f"{node.name}::" if isinstance(node, ast.ClassDef) else ""
        for child in inside:
            if isinstance(child, Function) and prefix + child.name in names:
                decorators = [ast.unparse(mark) for mark in child.decorator_list]
                if MARK.removeprefix("@") not in decorators:
                    places[min([child.lineno, *(mark.lineno for mark in child.decorator_list)])] = child
    for place in sorted(places, reverse=True):
        indent = " " * places[place].col_offset
        lines.insert(place - 1, f"{indent}{MARK}\n")
    if places and not re.search(r"^import pytest$", source, re.M):
        future = "from __future__ import annotations\n"
        lines.insert(lines.index(future) + 1 if future in lines else 1, "\nimport pytest\n")
    return "".join(lines)


def main() -> int:
    """The command."""
    parser = argparse.ArgumentParser(description=(__doc__ or "").splitlines()[0])
    parser.add_argument("durations", type=Path, help="what pytest printed with --durations=0")
    parser.add_argument("--over", type=float, default=1.0, help="seconds of a slow case")
    parser.add_argument("--together", type=float, default=5.0, help="seconds of all cases of a slow test")
    parser.add_argument("--most", type=float, default=2.0, help="seconds of a file's quickest test")
    given = parser.parse_args()
    limits = Limits(given.over, given.together, given.most)
    count = 0
    for path, costs in read_durations(given.durations.read_text(encoding="utf-8")).items():
        place = ROOT / path
        if not place.is_file():
            print(f"{path} is gone", file=sys.stderr)
            continue
        source = place.read_text(encoding="utf-8")
        changed = marked(source, slow_functions(costs, limits))
        count += changed.count(MARK) - source.count(MARK)
        place.write_text(changed, encoding="utf-8")
    print(f"{count} functions marked; run `ruff check --fix . && ruff format .`")
    return 0


if __name__ == "__main__":
    sys.exit(main())
