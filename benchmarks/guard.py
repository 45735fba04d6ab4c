"""Performance regression guard: runs the benchmarks and compares their ratios with those of baseline.json.

    python -m benchmarks.guard             # what `make bench` does
    python -m benchmarks.guard --update    # measure and write a new baseline
    python -m benchmarks.guard --only train-text

Times depend on the machine; ratios of two sides that took turns on it hardly do: student / teacher, our sampler /
the network alone, a textbook sampler / ours, our loss / the networks alone, a dense loss / ours. A ratio has
regressed when it is worse than its baseline by more than the tolerance; where a benchmark gives an interval, the
whole interval must be worse. Prints a table, then one JSON object as the last line; exit code 1 on a regression.
"""

from __future__ import annotations

import argparse
import json
import os
import subprocess
import sys
import tempfile
from collections.abc import Callable
from dataclasses import asdict, dataclass
from functools import reduce
from pathlib import Path
from typing import Any

from di4c_cli.cli.console import say, show_table

BASELINE = Path(__file__).with_name("baseline.json")
RunBenchmark = Callable[[list[str]], dict[str, Any]]
"""From a module and its arguments to the JSON object that the module prints last."""


@dataclass(frozen=True)
class Verdict:
    """One ratio against its baseline; `low` and `high` are equal where a benchmark gives no interval."""

    benchmark: str
    ratio: str
    worse: str
    baseline: float | None
    value: float
    low: float
    high: float
    limit: float | None
    regressed: bool


def run_benchmark(words: list[str]) -> dict[str, Any]:
    """`python -m …` in a temporary folder, where the benchmark may write its plot."""
    path = os.pathsep.join(filter(None, [str(BASELINE.parents[1]), os.environ.get("PYTHONPATH")]))
    with tempfile.TemporaryDirectory() as folder:
        done = subprocess.run(
            [sys.executable, "-m", *words],
            stdout=subprocess.PIPE,
            text=True,
            cwd=folder,
            env=os.environ | {"PYTHONPATH": path},
        )
    if done.returncode:
        raise SystemExit(f"guard: `python -m {' '.join(words)}` ended with exit code {done.returncode}.")
    return dict(json.loads(done.stdout.strip().splitlines()[-1]))


def find(result: dict[str, Any], name: str) -> tuple[float, float, float]:
    """Value and interval of a ratio in what a benchmark printed; `a.b/c.d` divides two numbers by their paths."""
    top = result["results"][0] if "results" in result else result
    if "/" in name:
        over, under = (float(reduce(lambda tree, key: tree[key], path.split("."), top)) for path in name.split("/"))
        return over / under, over / under, over / under
    found = top[name]
    if isinstance(found, dict):
        return float(found["ratio"]), float(found["low"]), float(found["high"])
    return float(found), float(found), float(found)


def judge(benchmark: str, ratio: str, rule: dict[str, Any], tolerance: float, result: dict[str, Any]) -> Verdict:
    """Compare one ratio; `rule` says its baseline and in which direction it gets worse."""
    value, low, high = find(result, ratio)
    baseline, worse = rule.get("value"), rule["worse"]
    own = rule.get("tolerance", tolerance)
    limit, regressed = None, False
    if baseline is not None:
        limit = baseline * (1 + own) if worse == "higher" else baseline / (1 + own)
        regressed = low > limit if worse == "higher" else high < limit
    return Verdict(benchmark, ratio, worse, baseline, value, low, high, limit, regressed)


def measure(baseline: dict[str, Any], only: list[str], run: RunBenchmark) -> list[Verdict]:
    """Run the benchmarks one after the other; nothing else should run at the same time."""
    out = []
    for name, benchmark in baseline["benchmarks"].items():
        if only and name not in only:
            continue
        say(f"{name}: python -m {' '.join(benchmark['command'])}")
        result = run(benchmark["command"])
        out += [judge(name, ratio, rule, baseline["tolerance"], result) for ratio, rule in benchmark["ratios"].items()]
    return out


def show(verdicts: list[Verdict]) -> None:
    """Print the table."""
    rows = []
    for one in verdicts:
        interval = f"[{one.low:.3f}, {one.high:.3f}]" if one.low != one.high else ""
        edge = "≤" if one.worse == "higher" else "≥"
        known = ["", ""] if one.baseline is None else [f"{one.baseline:.3f}", f"{edge} {one.limit:.3f}"]
        rows.append([one.benchmark, one.ratio, *known, f"{one.value:.3f}", interval])
        rows[-1].append("REGRESSED" if one.regressed else "new" if one.baseline is None else "ok")
    columns = ["benchmark", "ratio", "baseline", "allowed", "now", "95 % interval", "verdict"]
    show_table("Ratios against the baseline", columns, rows)


def updated(baseline: dict[str, Any], verdicts: list[Verdict]) -> dict[str, Any]:
    """The baseline with the measured values."""
    for one in verdicts:
        baseline["benchmarks"][one.benchmark]["ratios"][one.ratio]["value"] = round(one.value, 4)
    return baseline


def main(words: list[str], run: RunBenchmark = run_benchmark, path: Path = BASELINE) -> int:
    """Run the guard; the exit code is 1 if a ratio has regressed."""
    parser = argparse.ArgumentParser(description=(__doc__ or "").splitlines()[0])
    parser.add_argument("--update", action="store_true", help="write the measured ratios into baseline.json")
    parser.add_argument("--only", action="append", default=[], help="run this benchmark only; may be repeated")
    given = parser.parse_args(words)
    baseline = json.loads(path.read_text(encoding="utf-8"))
    unknown = set(given.only) - set(baseline["benchmarks"])
    if unknown:
        parser.error(f"unknown benchmark {', '.join(sorted(unknown))}; known: {', '.join(baseline['benchmarks'])}")
    verdicts = measure(baseline, given.only, run)
    show(verdicts)
    if given.update:
        path.write_text(json.dumps(updated(baseline, verdicts), indent=2) + "\n", encoding="utf-8")
    regressed = [f"{one.benchmark}: {one.ratio}" for one in verdicts if one.regressed]
    print(json.dumps({"bench": "guard", "regressed": regressed, "ratios": [asdict(one) for one in verdicts]}))
    return 1 if regressed and not given.update else 0


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
