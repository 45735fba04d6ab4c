"""`--processes` of sample, eval and sweep: the files of one process, also after a kill; mistakes in one sentence."""

from __future__ import annotations

import json
import os
import signal
import subprocess
import sys
import time
from contextlib import suppress
from pathlib import Path
from typing import Any

import psutil
import pytest
from typer.testing import CliRunner

from di4c_cli import files
from di4c_cli.cli.app import app
from di4c_cli.process_group import ProcessGroup
from di4c_cli.training.launch import launch
from tests.helpers import divided_samples
from tests.helpers.small_run import PATIENCE, make_teacher, run, started

SWEEP = """
kind: sweep
name: small
summary: two rows
base: di4c/digits
small: {evaluation.steps: [1, 2], training.iterations: 1, training.batch: 2, method.latents: 2}
rows: [{label: a, set: {seed: 0}}, {label: b, set: {seed: 1}}]
"""


@pytest.fixture(scope="module")
def teacher(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return make_teacher(tmp_path_factory.mktemp("models") / "teacher")


def figures(out: Path) -> dict[str, Any]:
    """A result file without its times and its command."""
    found = json.loads((out / "results.json").read_text(encoding="utf-8"))
    for name in ("created", "seconds", "command"):
        del found[name]
    for cell in found["cells"]:
        del cell["seconds"]
    return dict(found)


def pictures(out: Path) -> dict[str, bytes]:
    return {path.name: path.read_bytes() for path in (out / "samples").iterdir()}


def rank(process: subprocess.Popen[str], number: int) -> psutil.Process:
    """One of the processes that the launcher has started."""
    for child in psutil.Process(process.pid).children():
        with suppress(psutil.Error):
            if child.environ().get("RANK") == str(number):
                return child
    raise AssertionError("the launcher has no such process")


def wait_for_parts(process: subprocess.Popen[str], out: Path, more_than: int = 0) -> int:
    """Until an evaluation has written more parts than before."""
    deadline = time.monotonic() + PATIENCE
    while (count := len(list(out.glob("parts/*/*.npz")))) <= more_than:
        assert process.poll() is None and time.monotonic() < deadline, "the evaluation made no progress"
        time.sleep(0.02)
    return count


@pytest.mark.slow
def test_eval_in_two_processes_survives_kills_and_gives_the_result_of_one(teacher: Path, tmp_path: Path) -> None:
    one, two = tmp_path / "one", tmp_path / "two"
    command = ["eval", "--teacher", str(teacher), "--steps", "1,12", "-n", "1500", "--out"]
    done = CliRunner().invoke(app, [*command, str(one)])
    assert done.exit_code == 0, done.output
    divided = [*command, str(two), "--processes", "2"]
    with started(divided) as process:
        count = wait_for_parts(process, two)
        family = psutil.Process(process.pid).children()
        process.send_signal(signal.SIGTERM)
        _, said = process.communicate(timeout=PATIENCE)
    assert process.returncode == 143 and said.splitlines()[-1] == "di4c: Stopped by SIGTERM."
    assert not psutil.wait_procs(family, timeout=PATIENCE)[1]
    with started(divided) as process:
        wait_for_parts(process, two, count)
        rank(process, 1).kill()
        _, said = process.communicate(timeout=PATIENCE)
    assert process.returncode == 1
    assert "process 2 of 2 was killed by signal 9" in said.splitlines()[-1], said
    assert not (two / "results.json").exists()
    code, said = run(divided)
    assert code == 0, said
    assert said.count("wrote ") == 3, "only the main process prints"
    assert figures(one) == figures(two) and pictures(one) == pictures(two)


@pytest.mark.slow
def test_sample_in_two_processes_gives_the_files_of_one(teacher: Path, tmp_path: Path) -> None:
    divided_samples.main(str(teacher), str(tmp_path / "one"))
    command = [sys.executable, "-m", divided_samples.__name__, str(teacher), str(tmp_path / "two")]
    assert launch(2, command, cpu=True) == 0
    one, two = ({path.name: path.read_bytes() for path in (tmp_path / name).iterdir()} for name in ("one", "two"))
    assert len(one) == 8 and one == two


@pytest.mark.slow
def test_sweep_trains_and_measures_in_two_processes(teacher: Path, tmp_path: Path) -> None:
    Path("small.yaml").write_text(SWEEP)
    command = ["sweep", "small.yaml", "--teacher", str(teacher), "--samples", "60", "--out", str(tmp_path / "out")]
    code, said = run([*command, "--processes", "2"])
    assert code == 0, said
    assert said.count("1/2 a") == 1 and said.count("wrote ") == 3
    two = figures(tmp_path / "out")
    assert [(cell["row"], cell["steps"]) for cell in two["cells"]] == [
        (row, steps) for row in ("teacher", "a", "b") for steps in (1, 2)
    ]
    done = CliRunner().invoke(app, command)  # the students are there: one process measures them
    assert done.exit_code == 0, done.output
    assert figures(tmp_path / "out") == two


def test_sweep_rejects_a_second_writer(teacher: Path, tmp_path: Path) -> None:
    Path("small.yaml").write_text(SWEEP)
    with files.lock(tmp_path / "out"):
        words = ["sweep", "small.yaml", "--teacher", str(teacher), "--samples", "60", "--out", str(tmp_path / "out")]
        done = CliRunner().invoke(app, words)
    assert done.exit_code == 2 and "Another di4c is writing" in done.stderr
    assert not list(tmp_path.rglob("recipe.yaml"))


@pytest.mark.parametrize("command", ["sample", "eval", "sweep ablations/alpha"])
@pytest.mark.parametrize(
    ("flags", "message"),
    [
        ("--processes 33 --oversubscribe", "33 processes are more than this machine's 4 CPU cores"),
        ("--processes 5", "or add --oversubscribe"),
        ("--processes 2 --device cpu:0", "Several processes cannot all use cpu:0"),
        ("--processes 0", "--processes"),
    ],
)
def test_impossible_processes_are_refused(
    command: str, flags: str, message: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(os, "cpu_count", lambda: 4)
    more = ["--set", "training.batch=330"] if command.startswith("sweep") else []
    done = CliRunner().invoke(app, [*command.split(), *flags.split(), *more])
    assert done.exit_code == 2 and message in done.stderr and "Traceback" not in done.output


@pytest.mark.parametrize(
    ("words", "message"),
    [
        (["eval", "--samples", "x.txt", "--processes", "2"], "--samples is measured by one process"),
        (["sweep", "ablations/alpha", "--processes", "7"], "cannot be divided over 7 processes"),
    ],
)
def test_work_that_cannot_be_divided_is_refused(words: list[str], message: str) -> None:
    done = CliRunner().invoke(app, words)
    assert done.exit_code == 2 and message in done.stderr


def test_share_gives_every_item_once_and_balances_the_costs() -> None:
    costs = [1.0, 8, 2, 4, 1, 8, 2, 4, 3]
    groups = [ProcessGroup() for _ in range(3)]
    for number, group in enumerate(groups):
        group.rank, group.size = number, 3
    shares = [group.share(list(enumerate(costs)), lambda item: item[1]) for group in groups]
    assert sorted(item for share in shares for item in share) == list(enumerate(costs))
    assert all(share == sorted(share) for share in shares)
    assert {sum(cost for _, cost in share) for share in shares} == {11}
