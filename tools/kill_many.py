"""Kill a run with SIGKILL many times and see that the student does not notice.

    python -m tools.kill_many --kills 100
    python -m tools.kill_many --kills 20 --lora 2

Each life ends at a random moment: while starting, some time after its first step, or at the sight of a
checkpoint being written. Prints one line a kill and, last, whether the student equals that of an
uninterrupted run bit for bit.
"""

from __future__ import annotations

import argparse
import random
import subprocess
import sys
import tempfile
import time
from dataclasses import dataclass
from pathlib import Path

from di4c_cli.training.metrics import read_rows
from tests.helpers.small_run import PATIENCE, arguments, make_teacher, run, same, started, weights

STEPS_A_KILL = 12
"""So many steps longer is the run for every kill, that it is not over before the last one."""


@dataclass
class Killer:
    """Runs the command until it may finish; counts where the kills fell."""

    args: list[str]
    out: Path
    chance: random.Random
    in_checkpoint: int = 0

    def one_life(self, kind: str) -> bool:
        """Start, kill at a moment of this kind; false if the run ended before that."""
        with started(self.args) as process:
            if not self._wait(process, kind):
                return False
            self.in_checkpoint += bool(self._half_written())
            process.kill()
            return True

    def _wait(self, process: subprocess.Popen[str], kind: str) -> bool:
        if kind == "start":
            time.sleep(self.chance.uniform(0.0, 3.0))
            return process.poll() is None
        before = self._lines()
        while self._lines() <= before:
            if process.poll() is not None:
                return False
            time.sleep(0.001)
        deadline = time.monotonic() + self.chance.uniform(0.0, 0.4)
        while time.monotonic() < deadline or (kind == "checkpoint" and not self._half_written()):
            if process.poll() is not None:
                return False
        return True

    def _lines(self) -> int:
        path = self.out / "metrics.jsonl"
        return path.read_bytes().count(b"\n") if path.is_file() else 0

    def _half_written(self) -> list[Path]:
        return list(self.out.glob("round-*/checkpoints/.*.part"))


def kill_and_compare(work: Path, kills: int, seed: int, rounds: int = 1, lora: int = 0) -> dict[str, object]:
    """The whole experiment in the folder `work`; figures as a dictionary."""
    teacher = make_teacher(work / "teacher")
    steps = 8 + STEPS_A_KILL * kills // rounds
    more = ("--rounds", str(rounds), "--set", "training.dropout=0.1", "--set", "training.checkpoint_every=2")
    more += ("--lora", str(lora)) if lora else ()
    code, said = run(
        arguments(teacher, work / "whole", *more, iterations=steps, recipe="digits"), timeout=PATIENCE * kills
    )
    assert code == 0, said
    args = arguments(teacher, work / "killed", *more, iterations=steps, recipe="digits")
    killer, done = Killer(args, work / "killed", random.Random(seed)), 0
    for number in range(kills):
        kind = ("checkpoint", "later", "start")[number % 3]
        alive = killer.one_life(kind)
        done += alive
        print(f"kill {number + 1}/{kills} ({kind}): {killer._lines()} steps on file", file=sys.stderr, flush=True)
        if not alive:
            break
    code, said = run(args, timeout=PATIENCE * kills)
    assert code == 0, said
    rows = [(row["round"], row["step"]) for row in read_rows(work / "killed" / "metrics.jsonl")]
    return {
        "kills": done,
        "inside_a_checkpoint": killer.in_checkpoint,
        "rows_complete": rows == [(r, s) for r in range(1, rounds + 1) for s in range(1, steps + 1)],
        "equal": same(weights(work / "whole"), weights(work / "killed")),
        "leftovers": len(list((work / "killed").rglob("*.part"))) + len(list((work / "killed").rglob("*.old"))),
    }


if __name__ == "__main__":
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--kills", type=int, default=100)
    parser.add_argument("--seed", type=int, default=0)
    parser.add_argument("--rounds", type=int, default=1)
    parser.add_argument("--lora", type=int, default=0, help="rank of an adapter; 0: train all weights")
    given = parser.parse_args()
    with tempfile.TemporaryDirectory() as folder:
        result = kill_and_compare(Path(folder), given.kills, given.seed, given.rounds, given.lora)
    print(result)
    sys.exit(0 if result["equal"] and result["rows_complete"] else 1)
