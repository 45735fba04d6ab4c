"""The hostile round: thousands of generated cases, a table by target and one JSON line.

    python -m tests.hostile --cases 5000 --seed 7
    python -m tests.hostile --target tokenizer --number 31 --seed 7
    python -m tests.hostile --grid

Every case is a function of the seed, its target and its number. Failures are written to --failures, each with the
command that repeats it. The exit code is 1 if there is any.
"""

from __future__ import annotations

import argparse
import json
import os
import shutil
import signal
import sys
import tempfile
import time
import traceback
from collections.abc import Iterator
from pathlib import Path

import torch

from tests.hostile import cases, grammar, originals

CASE_SECONDS = 600
"""A case that takes longer is a fault of the round."""
ENDINGS = ("refused", "worked", "stopped", "failed")


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--cases", type=int, default=500)
    parser.add_argument("--seed", default="0")
    parser.add_argument("--target", choices=list(cases.shares()), help="only this one")
    parser.add_argument("--number", type=int, help="only this case of --target, and keep its files")
    parser.add_argument("--grid", action="store_true", help="every option with every value of the grammar instead")
    parser.add_argument("--workers", type=int, default=2)
    parser.add_argument("--failures", type=Path, default=Path("hostile-failures.jsonl"))
    parser.add_argument("--log", type=Path, default=Path(os.devnull), help="one line for every case")
    parser.add_argument("--originals", type=Path, help="a folder for the valid files, to be used again")
    given = parser.parse_args()
    torch.set_num_threads(1)
    with tempfile.TemporaryDirectory(prefix="hostile-", ignore_cleanup_errors=True) as folder:
        return _round(given, Path(folder))


def _round(given: argparse.Namespace, folder: Path) -> int:
    started = time.monotonic()
    cases.warm_up()
    root = given.originals or folder / "originals"
    if not (root / "data" / "statistics.npz").exists():
        originals.build(root)
    if given.number is not None:
        return _one(given, root)
    todo = _todo(given)
    readers = [
        _worker(todo[index :: given.workers], given, root, folder / f"work-{index}") for index in range(given.workers)
    ]
    found = []
    with given.failures.open("w") as out, given.log.open("w") as log:
        for verdict in _verdicts(readers):
            found.append(verdict)
            print(json.dumps(verdict), file=log)
            if verdict["ending"] == "failed":
                place = f"--target '{verdict['target']}' --number {verdict['number']} --seed {given.seed}"
                verdict["again"] = f"python -m tests.hostile {place}"
                print(json.dumps(verdict), file=out, flush=True)
                print(f"{verdict['target']} {verdict['number']}: {verdict['problems']}", file=sys.stderr)
    missing = len(todo) - len(found)
    _show(found, given, missing, time.monotonic() - started)
    return int(missing > 0 or any(verdict["ending"] == "failed" for verdict in found))


def _todo(given: argparse.Namespace) -> list[tuple[str, int]]:
    if given.grid:
        return [("grid", number) for number in range(len(grammar.grid()))]
    return [(given.target or cases.choose(number), number) for number in range(given.cases)]


def _one(given: argparse.Namespace, root: Path) -> int:
    work = Path(tempfile.mkdtemp(prefix="hostile-case-"))
    cases.sandbox.adopt_orphans()
    verdict = cases.run(given.target, given.seed, given.number, root, work)
    print(json.dumps(vars(verdict), indent=2), f"\nfiles: {work}")
    return int(verdict.ending == "failed")


def _worker(todo: list[tuple[str, int]], given: argparse.Namespace, root: Path, work: Path) -> int:
    """A process that runs its share and sends one line per case; returns the descriptor to read them from."""
    reading, writing = os.pipe()
    if os.fork():
        os.close(writing)
        return reading
    try:
        os.close(reading)
        with os.fdopen(writing, "w") as out:
            for target, number in todo:
                print(_separately(target, number, given, root, work), file=out, flush=True)
        shutil.rmtree(work, ignore_errors=True)
    finally:
        os._exit(0)


def _separately(target: str, number: int, given: argparse.Namespace, root: Path, work: Path) -> str:
    """The verdict of a case as JSON, from a process of its own: what making a case does to memory ends with it."""
    answer = work.with_name(f"{work.name}.json")
    answer.unlink(missing_ok=True)
    child = os.fork()
    if child == 0:
        try:
            cases.sandbox.adopt_orphans()
            if given.grid:
                verdict = cases.run_option(grammar.grid()[number], number, root, work)
            else:
                verdict = cases.run(target, given.seed, number, root, work)
            answer.write_text(json.dumps(vars(verdict)))
        except BaseException:
            answer.write_text(json.dumps(vars(_broken(target, number, traceback.format_exc()))))
        finally:
            os._exit(0)
    deadline = time.monotonic() + CASE_SECONDS
    while os.waitpid(child, os.WNOHANG)[0] == 0:
        if time.monotonic() > deadline:
            os.kill(child, signal.SIGKILL)
        time.sleep(0.005)
    return answer.read_text() if answer.exists() else json.dumps(vars(_broken(target, number, "no verdict")))


def _broken(target: str, number: int, said: str) -> cases.Verdict:
    return cases.Verdict(target, number, "failed", "", [], ["the round itself"], said=said)


def _verdicts(readers: list[int]) -> Iterator[dict]:
    import selectors

    selector = selectors.DefaultSelector()
    for reader in readers:
        selector.register(os.fdopen(reader), selectors.EVENT_READ)
    while selector.get_map():
        for key, _ in selector.select():
            line = key.fileobj.readline()  # type: ignore[union-attr]
            if line:
                yield json.loads(line)
            else:
                selector.unregister(key.fileobj)


def _show(found: list[dict], given: argparse.Namespace, missing: int, seconds: float) -> None:
    names = [*cases.shares(), "grid"]
    rows = [[name, *(sum(v["target"] == name and v["ending"] == e for v in found) for e in ENDINGS)] for name in names]
    rows = [[name, sum(counts), *counts] for name, *counts in rows if sum(counts)]
    rows.append(["all", *(sum(column) for column in list(zip(*rows, strict=True))[1:])])
    print(f"| target | cases | {' | '.join(ENDINGS)} |\n|---|{'---:|' * 5}")
    for row in rows:
        print(f"| {' | '.join(map(str, row))} |")
    peak = max((v["peak"] for v in found), default=0)
    longest = max((v["seconds"] for v in found if v["ending"] != "stopped"), default=0)
    summary = dict(zip(("cases", *ENDINGS), rows[-1][1:], strict=True))
    summary |= {
        "missing": missing,
        "seed": given.seed,
        "peak_mb": peak >> 20,
        "longest_s": longest,
        "minutes": round(seconds / 60, 1),
    }
    print(json.dumps(summary))


if __name__ == "__main__":
    sys.exit(main())
