"""SIGTERM and SIGINT end a command at any moment with a sentence; processes end with their launcher."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
import textwrap
import time
from contextlib import suppress
from pathlib import Path

import psutil
import pytest

from di4c_cli.signals import LAUNCHER_VARIABLE
from tests.helpers.faults import command, sentence
from tests.helpers.small_run import PATIENCE, arguments, started


def stop(process: subprocess.Popen[str], number: int) -> tuple[int, str]:
    process.send_signal(number)
    _, said = process.communicate(timeout=PATIENCE)
    return process.returncode, said


@pytest.mark.parametrize(
    ("module", "number"),
    [
        ("di4c_cli.signals", signal.SIGTERM),
        ("typer", signal.SIGINT),
        ("di4c_cli.recipe_file", signal.SIGTERM),
        ("torch", signal.SIGTERM),
        pytest.param("numpy", signal.SIGTERM, marks=pytest.mark.slow),  # torch swallows an interruption of this import
    ],
)
def test_signal_while_modules_are_imported(tmp_path: Path, module: str, number: int) -> None:
    """Each of these imports is reached, the signal arrives inside it, and the answer is the same."""
    script = f"""
        import os, signal, sys
        from di4c_cli.__main__ import main

        signal.signal(signal.SIGINT, signal.default_int_handler)  # a shell's background job ignores it

        class Finder:
            def find_spec(self, name, path=None, target=None):
                if name == {module!r} and not done:
                    done.append(name)
                    os.kill(os.getpid(), {int(number)})

        done = []
        if {module!r} == "di4c_cli.signals":
            from di4c_cli import signals
            install = signals.install
            signals.install = lambda: (install(), os.kill(os.getpid(), {int(number)}))
        sys.meta_path.insert(0, Finder())
        sys.argv = ["di4c", "sample", "-n", "1", "--steps", "1", "--out", {str(tmp_path / "x.png")!r}]
        main()
    """
    done = subprocess.run(
        [sys.executable, "-c", textwrap.dedent(script)], capture_output=True, text=True, timeout=PATIENCE, check=False
    )
    assert done.returncode == 128 + number and "Traceback" not in done.stderr
    assert done.stderr.splitlines()[-1] == f"di4c: Stopped by {signal.Signals(number).name}."


def test_signal_in_native_code_ends_the_process() -> None:
    """A call that swallows the interruption or never returns is ended by the watching thread."""
    code = (
        "import os, signal, threading\nfrom di4c_cli import signals\n"
        "signals.GRACE_SECONDS = 0.1\nsignals.POLL_SECONDS = 0.05\nsignals.install()\n"
        "def command():\n"
        "    threading.Timer(0.1, os.kill, (os.getpid(), signal.SIGTERM)).start()\n"
        "    while True:\n"
        "        try:\n            threading.Event().wait()\n        except BaseException:\n            pass\n"
        "signals.stoppable(command)()\n"
    )
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, timeout=PATIENCE, check=False)
    assert done.returncode == 143 and done.stderr == "di4c: Stopped by SIGTERM.\n"


@pytest.mark.slow
def test_sigterm_while_the_pool_of_the_teacher_is_drawn(tmp_path: Path) -> None:
    """The pool has millions of samples: without an answer inside it this test would not end."""
    words = ["distill", "--out", str(tmp_path / "run"), "--iterations", "1000000"]
    words += ["--set", "training.synthetic_share=0.5", "--set", "training.synthetic_pool=9000000"]
    with subprocess.Popen(command(*words), stderr=subprocess.PIPE, text=True) as process:
        assert process.stderr is not None
        line = process.stderr.readline()
        assert line.startswith("Drawing 9000000"), line
        code, said = stop(process, signal.SIGTERM)
    assert code == 143
    sentence(said, "Stopped by SIGTERM.")


def test_process_ends_when_its_launcher_has_died(tmp_path: Path) -> None:
    """Also before training starts, and when the launcher is not its parent."""
    with subprocess.Popen([sys.executable, "-c", "input()"], stdin=subprocess.PIPE) as launcher:
        script = (
            "from di4c_cli import signals\nimport time\nsignals.install()\nprint(1, flush=True)\n"
            "while True:\n    time.sleep(0.05)\n"
        )
        environment = {**os.environ, LAUNCHER_VARIABLE: str(launcher.pid)}
        with subprocess.Popen(
            [sys.executable, "-c", script], stdout=subprocess.PIPE, stderr=subprocess.PIPE, env=environment
        ) as child:
            assert child.stdout is not None and child.stdout.readline()
            launcher.kill()  # not waited for: a zombie is dead too
            _, said = child.communicate(timeout=PATIENCE)
    assert child.returncode == 143 and said == b"di4c: Stopped by SIGTERM.\n"


@pytest.mark.slow
def test_launched_processes_end_with_a_launcher_killed_at_its_start(teacher: Path, tmp_path: Path) -> None:
    with started(arguments(teacher, tmp_path / "run", "--processes", "2", iterations=5000)) as process:
        deadline, family = time.monotonic() + PATIENCE, []
        while len(family) < 2:
            assert time.monotonic() < deadline
            time.sleep(0.05)
            with suppress(psutil.Error):
                family = psutil.Process(process.pid).children(recursive=True)
        process.kill()
        _, alive = psutil.wait_procs(family, timeout=PATIENCE)
    assert not alive
