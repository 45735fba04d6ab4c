"""Speed of `di4c eval` in several processes against one, one thread each.

    python -m benchmarks.processes --processes 2 --samples 2000

Every run is the real command in a new folder, from its start to its end, with the embedded pair by default. The sides
take turns, so that a slow moment of the machine affects both; medians are compared. The machine needs an idle core for
every process. Also says whether the figures are equal. Prints a table, then one JSON object as the last line.
"""

from __future__ import annotations

import json
import os
import statistics
import subprocess
import sys
import tempfile
import time
from pathlib import Path
from typing import Annotated, Any

import typer

from di4c_cli import signals
from di4c_cli.cli.console import emit_json, show_table
from di4c_cli.cli.guard import guarded
from di4c_cli.errors import Failure
from di4c_cli.schema import MAX_SAMPLES


def evaluate(student: str, samples: int, processes: int) -> tuple[float, dict[str, Any]]:
    """Seconds of one command, and its figures by row and column."""
    words = ["-m", "di4c_cli", "eval", "--student", student, "-n", samples, "--processes", processes, "--json"]
    path = os.pathsep.join(filter(None, [str(Path(__file__).parents[1]), os.environ.get("PYTHONPATH")]))
    environment = os.environ | {"OMP_NUM_THREADS": "1", "PYTHONPATH": path}
    pipes = {"stdout": subprocess.PIPE, "stderr": subprocess.PIPE}
    with tempfile.TemporaryDirectory(prefix="di4c-") as folder:
        start = time.monotonic()
        done = subprocess.run([sys.executable, *map(str, words)], cwd=folder, env=environment, text=True, **pipes)
        seconds = time.monotonic() - start
    if done.returncode:
        raise Failure(f"di4c eval ended with exit code {done.returncode}: {done.stderr.strip().splitlines()[-1]}")
    cells = json.loads(done.stdout)["cells"]
    return seconds, {f"{cell['row']}, {cell['column']}": cell["figures"] for cell in cells}


def measure(student: str, samples: int, processes: int, runs: int) -> dict[str, Any]:
    """Times of both sides, the ratio of their medians, and whether all figures are equal."""
    seconds: dict[int, list[float]] = {1: [], processes: []}
    found = []
    for _ in range(runs):
        for side in seconds:
            spent, figures = evaluate(student, samples, side)
            seconds[side].append(spent)
            found.append(figures)
    one, several = (statistics.median(times) for times in seconds.values())
    equal = all(figures == found[0] for figures in found)
    return {"seconds": seconds, "speed_ratio": one / several, "equal_figures": equal}


@guarded
@signals.stoppable
def main(
    processes: Annotated[int, typer.Option(min=2, max=1024, help="Processes of the second side.")] = 2,
    samples: Annotated[int, typer.Option(min=1, max=MAX_SAMPLES, help="Samples in each cell.")] = 2000,
    student: Annotated[str, typer.Option(help="The evaluated student; its teacher is measured too.")] = (
        "digits-student"
    ),
    runs: Annotated[int, typer.Option(min=1, max=1000, help="Runs of each side.")] = 3,
) -> None:
    """Time `di4c eval` in one process and in several."""
    result = measure(student, samples, processes, runs)
    rows = [
        [str(side), f"{statistics.median(times):.1f}", f"{min(times):.1f}–{max(times):.1f}"]
        for side, times in result["seconds"].items()
    ]
    title = f"di4c eval -n {samples}, {student}, one thread a process, medians of {runs}"
    show_table(title, ["processes", "seconds", "range"], rows)
    facts = {"bench": "processes", "student": student, "samples": samples, "processes": processes, "runs": runs}
    emit_json(facts | result)


if __name__ == "__main__":
    signals.install()
    typer.run(main)
