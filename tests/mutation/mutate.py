"""Mutation testing of the mathematics: would the tests notice if a line were wrong?

    python tests/mutation/mutate.py --count 400 --seed 0
    python tests/mutation/mutate.py --count 20 --only process --jobs 1

A seeded sample of mutants of `objective/`, `sampler/` and `process/`, each in a copy of the package, against the
tests mapped to its folder; a mutant is killed when a test fails or time runs out. Prints a line a mutant, then the
killed share with its 95 % Wilson interval, the survivors, and one JSON object as the last line. Exit code 1 if the
interval's lower end is below `--least`.
"""

from __future__ import annotations

import argparse
import json
import math
import multiprocessing
import os
import random
import shutil
import sys
import tempfile
import time
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from pathlib import Path
from queue import Queue

sys.path.insert(0, str(Path(__file__).parent))
from mutants import Mutant, mutants

ROOT = Path(__file__).parents[2]
TESTS: dict[str, list[str]] = {
    "process": [
        "tests/process",
        "tests/sampler",
        "tests/golden/test_posterior.py",
        "tests/golden/test_schedules.py",
    ],
    "sampler": ["tests/sampler"],
    "objective": ["tests/objective", "tests/golden/test_losses.py"],
}
"""For each folder the tests that must notice, the quickest first; pytest stops at the first failure."""
SERVER = multiprocessing.get_context("forkserver")
"""Its processes begin with torch imported, which takes longer than most tests."""
Z = 1.959964


@dataclass(frozen=True)
class Trial:
    """What became of a mutant."""

    mutant: Mutant
    outcome: str
    seconds: float

    @property
    def killed(self) -> bool:
        return self.outcome != "survived"

    def line(self) -> str:
        """One line for people."""
        place = f"{self.mutant.path.relative_to(ROOT)}:{self.mutant.line}:{self.mutant.column}"
        return f"{self.outcome:<9} {place}  {self.mutant.change}  ({self.seconds:.0f} s)"


def wilson(killed: int, total: int) -> tuple[float, float]:
    """95 % interval of a share."""
    if total == 0:
        return 0.0, 1.0
    share, scale = killed / total, 1 + Z**2 / total
    middle = (share + Z**2 / (2 * total)) / scale
    half = Z * math.sqrt(share * (1 - share) / total + Z**2 / (4 * total**2)) / scale
    return middle - half, middle + half


def chosen(folders: list[str], count: int, seed: int) -> list[Mutant]:
    """A seeded sample, every mutant of the folders equally likely; in the order of the files."""
    every = [
        mutant
        for folder in folders
        for path in sorted((ROOT / "di4c_cli" / folder).glob("*.py"))
        for mutant in mutants(path)
    ]
    picked = random.Random(seed).sample(range(len(every)), min(count, len(every)))
    return [every[number] for number in sorted(picked)]


class Bench:
    """A copy of the checkout in which one mutant at a time replaces its file."""

    def __init__(self, folder: Path) -> None:
        self.folder = folder
        for name in ("di4c_cli", "tests", "recipes"):
            shutil.copytree(ROOT / name, folder / name, ignore=shutil.ignore_patterns("__pycache__"))
        shutil.copyfile(ROOT / "pyproject.toml", folder / "pyproject.toml")

    def try_one(self, mutant: Mutant, patience: float) -> Trial:
        """Run the mapped tests on the mutant."""
        place = self.folder / mutant.path.relative_to(ROOT)
        place.write_text(mutant.source(), encoding="utf-8")
        start = time.monotonic()
        try:
            outcome = self.tests(TESTS[mutant.path.parent.name], patience)
        finally:
            shutil.copyfile(mutant.path, place)
        return Trial(mutant, outcome, time.monotonic() - start)

    def tests(self, paths: list[str], patience: float) -> str:
        """`survived`, `killed` (a test failed or could not be imported) or `timeout`."""
        child = SERVER.Process(target=run_tests, args=(self.folder, paths))
        child.start()
        child.join(patience)
        if child.exitcode is None:
            child.kill()
            child.join()
            return "timeout"
        if child.exitcode > 2:
            raise RuntimeError(f"pytest ended with {child.exitcode} on {' '.join(paths)}")
        return "survived" if child.exitcode == 0 else "killed"


def run_tests(folder: Path, paths: list[str]) -> None:
    """In a process of its own that has torch already: pytest on the package in `folder`."""
    os.chdir(folder)
    os.environ |= {"PYTHONPATH": str(folder), "HYPOTHESIS_STORAGE_DIRECTORY": str(folder / ".hypothesis")}
    sys.path.insert(0, str(folder))
    sys.dont_write_bytecode = True
    silence = os.open(os.devnull, os.O_WRONLY)
    os.dup2(silence, 1)
    os.dup2(silence, 2)
    import pytest
    import torch

    torch.set_num_threads(1)
    sys.exit(int(pytest.main(["-x", "-q", "-n", "0", "-p", "no:cacheprovider", *paths])))


def trials(picked: list[Mutant], jobs: int, factor: float) -> Iterator[Trial]:
    """All of them, `jobs` at a time; patience is `factor` times what the tests take on the true code."""
    with tempfile.TemporaryDirectory() as scratch:
        benches = [Bench(Path(scratch) / str(number)) for number in range(jobs)]
        patience: dict[str, float] = {}
        for folder in sorted({mutant.path.parent.name for mutant in picked}):
            start = time.monotonic()
            if benches[0].tests(TESTS[folder], 3600) != "survived":
                raise SystemExit(f"mutate: the tests of {folder} fail on the code as it is.")
            patience[folder] = factor * (time.monotonic() - start) + 10
        free: Queue[Bench] = Queue()
        for bench in benches:
            free.put(bench)

        def work(one: Mutant) -> Trial:
            bench = free.get()
            try:
                return bench.try_one(one, patience[one.path.parent.name])
            finally:
                free.put(bench)

        with ThreadPoolExecutor(jobs) as pool:
            yield from pool.map(work, picked)


def report(done: list[Trial], least: float) -> int:
    """Share, interval, survivors and the JSON line; the exit code."""
    killed, total = sum(trial.killed for trial in done), len(done)
    low, high = wilson(killed, total)
    survivors = [trial for trial in done if not trial.killed]
    print(
        f"killed {killed} of {total}: {100 * killed / max(total, 1):.1f} % [{100 * low:.1f}, {100 * high:.1f}]"
    )
    for trial in survivors:
        print("  " + trial.line())
    print(
        json.dumps(
            {
                "mutants": total,
                "killed": killed,
                "low": round(low, 4),
                "high": round(high, 4),
                "survivors": [
                    [
                        str(one.mutant.path.relative_to(ROOT)),
                        one.mutant.line,
                        one.mutant.column,
                        one.mutant.change,
                    ]
                    for one in survivors
                ],
            }
        )
    )
    return 0 if low >= least else 1


def main(words: list[str]) -> int:
    """The command."""
    parser = argparse.ArgumentParser(description=(__doc__ or "").splitlines()[0])
    parser.add_argument("--count", type=int, default=400)
    parser.add_argument("--seed", type=int, default=0)
    parser.add_argument("--only", choices=list(TESTS), action="append", help="a folder; may be repeated")
    parser.add_argument("--jobs", type=int, default=1)
    parser.add_argument(
        "--factor", type=float, default=3.0, help="patience, in runs of the tests on the true code"
    )
    parser.add_argument("--least", type=float, default=0.80, help="lower end of the interval that passes")
    given = parser.parse_args(words)
    os.environ["OMP_NUM_THREADS"] = "1"
    SERVER.set_forkserver_preload(["torch", "pytest", "numpy", "hypothesis", "pydantic"])
    picked = chosen(given.only or list(TESTS), given.count, given.seed)
    done = []
    for trial in trials(picked, given.jobs, given.factor):
        done.append(trial)
        print(f"{len(done)}/{len(picked)} {trial.line()}", file=sys.stderr, flush=True)
    return report(done, given.least)


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
