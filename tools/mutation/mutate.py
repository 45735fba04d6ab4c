"""Mutation testing of the mathematics: would the tests notice if a line were wrong?

    python -m tools.mutation.mutate --count 400 --seed 0
    python -m tools.mutation.mutate --count 20 --only process --jobs 1

A seeded sample of mutants of `methods/`, `latent/`, `sampler/` and `process/`, each against the tests mapped to its
folder, in a fork of a session that has them loaded (`warm.py`) or else in a fresh process on a copy of the package; a
mutant is killed when a test fails or processor time runs out. Prints a line a mutant, then the killed share with its
95 % Wilson interval, the survivors, and one JSON object as the last line. Exit code 1 if the interval's lower end is
below `--least`.
"""

from __future__ import annotations

import argparse
import json
import math
import multiprocessing
import os
import random
import re
import shutil
import sys
import tempfile
import time
from collections import Counter
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path

from tools.mutation.mutants import Mutant, mutants
from tools.mutation.warm import COLD, Test, limit, serve

ROOT = Path(__file__).parents[2]
TESTS: dict[str, tuple[str, ...]] = {
    "process": ("tests/process", "tests/golden/test_posterior.py", "tests/golden/test_schedules.py", "tests/sampler"),
    "sampler": ("tests/sampler",),
    "methods": ("tests/methods", "tests/golden/test_losses.py"),
    "methods/kernels": ("tests/methods", "tests/golden/test_losses.py"),
    "latent": ("tests/latent", "tests/methods/test_variational.py", "tests/methods/test_stratified.py"),
}
"""For each folder the tests that must notice."""
LEFT_OUT = "real_noise or (on_the_batch and (None] or -1]))"
"""Slow tests that repeat others: laws with a generator for each of 200 000 samples, tiles of other sizes."""
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
        return f"{self.outcome:<9} {label(self.mutant)}  ({self.seconds:.0f} s)"


def label(mutant: Mutant) -> str:
    """Where and what; the same for changes of two operators in one expression."""
    return f"{mutant.path.relative_to(ROOT)}:{mutant.line}:{mutant.column}  {mutant.change}"


def killed_before(picked: list[Mutant], lines: str) -> list[Mutant]:
    """Those that the lines of an earlier run report as killed, every time that their label stands in the sample."""
    seen = Counter(re.findall(r"(?:killed|timeout) +(\S.*)  \(\d+ s\)", lines))
    total = Counter(label(mutant) for mutant in picked)
    return [mutant for mutant in picked if seen[label(mutant)] >= total[label(mutant)]]


def wilson(killed: int, total: int) -> tuple[float, float]:
    """95 % interval of a share."""
    if total == 0:
        return 0.0, 1.0
    share, scale = killed / total, 1 + Z**2 / total
    middle = (share + Z**2 / (2 * total)) / scale
    half = Z * math.sqrt(share * (1 - share) / total + Z**2 / (4 * total**2)) / scale
    return middle - half, middle + half


def tests_of(mutant: Mutant) -> tuple[str, ...]:
    """The tests mapped to the folder of a mutant."""
    return TESTS[mutant.path.parent.relative_to(ROOT / "di4c_cli").as_posix()]


def chosen(folders: list[str], count: int, seed: int) -> list[Mutant]:
    """A seeded sample, every mutant of the folders equally likely, in any order, so that its beginning is one too."""
    every = [
        mutant
        for folder in folders
        for path in sorted((ROOT / "di4c_cli" / folder).glob("*.py"))
        for mutant in mutants(path)
    ]
    return random.Random(seed).sample(every, min(count, len(every)))


class Bench:
    """A copy of the checkout in which one mutant at a time replaces its file, for a fresh process."""

    def __init__(self, folder: Path) -> None:
        self.folder = folder
        for name in ("di4c_cli", "tests", "recipes"):
            shutil.copytree(ROOT / name, folder / name, ignore=shutil.ignore_patterns("__pycache__"))
        shutil.copyfile(ROOT / "pyproject.toml", folder / "pyproject.toml")

    def try_one(self, mutant: Mutant, tests: list[Test], factor: float) -> Trial:
        """Run the files of these tests on the mutant: their names may depend on the code that is changed."""
        place = self.folder / mutant.path.relative_to(ROOT)
        place.write_text(mutant.source(), encoding="utf-8")
        start = time.monotonic()
        try:
            patience = factor * sum(test.seconds for test in tests) + 30
            files = dict.fromkeys(test.name.partition("::")[0] for test in tests)
            outcome = self.outcome([*files, "-k", f"not ({LEFT_OUT})"], patience)
        finally:
            shutil.copyfile(mutant.path, place)
        return Trial(mutant, outcome, time.monotonic() - start)

    def outcome(self, tests: list[str], patience: float) -> str:
        """`survived`, `killed` (a test failed or could not be imported) or `timeout`."""
        child = SERVER.Process(target=run_tests, args=(self.folder, tests, patience))
        child.start()
        child.join()
        if child.exitcode is None or child.exitcode > 2:
            raise RuntimeError(f"pytest ended with {child.exitcode} on {' '.join(tests)}")
        if child.exitcode < 0:
            return "timeout"
        return "survived" if child.exitcode == 0 else "killed"


def run_tests(folder: Path, tests: list[str], patience: float) -> None:
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
    limit(patience)
    sys.exit(int(pytest.main(["-x", "-q", "-n", "0", "-p", "no:cacheprovider", *tests])))


def trials(picked: list[Mutant], jobs: int, factor: float, effort: float, measured: Path | None) -> Iterator[Trial]:
    """All of them, `jobs` at a time; patience is `factor` times what the tests take on the true code."""
    paths = sorted({path for mutant in picked for path in tests_of(mutant)})
    with tempfile.TemporaryDirectory() as name:
        scratch = Path(name)
        told = SERVER.SimpleQueue()
        words = [*paths, "-k", f"not ({LEFT_OUT})"]
        work = [(mutant, tests_of(mutant)) for mutant in picked]
        options = (ROOT, words, work, jobs, factor, effort, measured or scratch / "tests", told)
        session = SERVER.Process(target=serve, args=options)
        session.start()
        tests = told.get()
        if not tests:
            raise SystemExit("mutate: tests fail on the code as it is.")
        cold = []
        for _ in picked:
            mutant, outcome, seconds = told.get()
            if outcome == COLD:
                cold.append(mutant)
            else:
                yield Trial(mutant, outcome, seconds)
        session.join()
        bench = Bench(scratch / "bench")
        for mutant in cold:
            mine = [test for test in tests if test.name.startswith(tests_of(mutant))]
            yield bench.try_one(mutant, mine, factor)


def report(done: list[Trial], least: float) -> int:
    """Share, interval, survivors and the JSON line; the exit code."""
    killed, total = sum(trial.killed for trial in done), len(done)
    low, high = wilson(killed, total)
    survivors = [trial for trial in done if not trial.killed]
    print(f"killed {killed} of {total}: {100 * killed / max(total, 1):.1f} % [{100 * low:.1f}, {100 * high:.1f}]")
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
                    [str(one.mutant.path.relative_to(ROOT)), one.mutant.line, one.mutant.column, one.mutant.change]
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
    parser.add_argument("--factor", type=float, default=3.0, help="patience, in runs of the tests on the true code")
    parser.add_argument(
        "--effort", type=float, default=math.inf, help="most processor seconds of tests for a mutant, quickest first"
    )
    parser.add_argument("--least", type=float, default=0.80, help="lower end of the interval that passes")
    parser.add_argument("--measured", type=Path, help="keep what the true code shows of the tests for the next time")
    parser.add_argument(
        "--again", type=Path, help="lines of an earlier run (its stderr): try only what it did not kill"
    )
    given = parser.parse_args(words)
    os.environ["OMP_NUM_THREADS"] = "1"
    SERVER.set_forkserver_preload(["torch", "pytest", "numpy", "hypothesis", "pydantic"])
    picked = chosen(given.only or list(TESTS), given.count, given.seed)
    known = killed_before(picked, given.again.read_text(encoding="utf-8") if given.again else "")
    done = [Trial(mutant, "killed", 0.0) for mutant in known]
    picked = [mutant for mutant in picked if mutant not in known]
    for trial in trials(picked, given.jobs, given.factor, given.effort, given.measured):
        done.append(trial)
        print(f"{len(done)}/{len(known) + len(picked)} {trial.line()}", file=sys.stderr, flush=True)
    return report(done, given.least)


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
