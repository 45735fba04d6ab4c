"""Ways to make the machine misbehave, and what every command must answer: one sentence and an exit code."""

from __future__ import annotations

import ctypes
import fcntl
import os
import pty
import re
import signal
import struct
import subprocess
import sys
import termios
import traceback
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

from typer.testing import CliRunner

from di4c_cli import files
from di4c_cli.cli.app import app

OVERRIDES = (1 << 1) | (1 << 2)
"""CAP_DAC_OVERRIDE and CAP_DAC_READ_SEARCH: with them file permissions mean nothing."""
CONTROL = re.compile(r"\x1b\[[0-9;?]*[A-Za-z]|\x1b\][^\x07]*\x07|\r")


def call(*words: object) -> Any:
    """A command in this process."""
    return CliRunner().invoke(app, [str(word) for word in words])


def told(result: Any, code: int, *words: str) -> None:
    """The command ended with `code` and exactly one sentence that holds `words`."""
    if result.exception is not None and not isinstance(result.exception, SystemExit):
        raise result.exception
    sentence(result.stderr, *words)
    assert result.exit_code == code, result.stderr


def sentence(said: str, *words: str) -> None:
    """One line of ours and no traceback."""
    lines = said.strip().splitlines()
    assert len(lines) == 1 and lines[0].startswith("di4c: "), said
    for word in words:
        assert word in lines[0], said


@contextmanager
def obeys_permissions() -> Iterator[bool]:
    """Take root's right to ignore permissions from this thread; yields whether they are obeyed now."""
    if os.geteuid() != 0:
        yield True
        return
    libc = ctypes.CDLL(None, use_errno=True)
    header = struct.pack("Ii", 0x20080522, 0)
    data = ctypes.create_string_buffer(24)
    if not hasattr(libc, "capget") or libc.capget(header, data) != 0:
        yield False
        return
    before = data.raw
    effective = struct.unpack_from("I", before, 0)[0]
    struct.pack_into("I", data, 0, effective & ~OVERRIDES)
    obeyed = libc.capset(header, data) == 0
    try:
        yield obeyed
    finally:
        libc.capset(header, before)


def command(*words: object) -> list[str]:
    """The command as a process."""
    return [sys.executable, "-m", "di4c_cli", *map(str, words)]


def process(*words: object, drop: tuple[str, ...] = (), **environment: str) -> subprocess.CompletedProcess[str]:
    """Run it with other variables in its environment, and without some."""
    env = {key: value for key, value in os.environ.items() if key not in drop}
    return subprocess.run(
        command(*words),
        env=env | {"OMP_NUM_THREADS": "1"} | environment,
        capture_output=True,
        encoding="utf-8",
        errors="surrogateescape",
        check=False,
        timeout=300,
    )


def in_terminal(columns: int, *words: object, **environment: str) -> tuple[int, str]:
    """Run it in a terminal that wide; exit code and all results that appeared, control sequences included.

    What is said beside them is left out: sentences are wrapped by the terminal itself.
    """
    main, side = pty.openpty()
    fcntl.ioctl(side, termios.TIOCSWINSZ, struct.pack("HHHH", 24, columns, 0, 0))
    env = {key: value for key, value in os.environ.items() if key not in ("COLUMNS", "NO_COLOR", "CI")}
    env |= {"TERM": "xterm-256color", "OMP_NUM_THREADS": "1"} | environment
    with subprocess.Popen(command(*words), stdin=side, stdout=side, stderr=subprocess.DEVNULL, env=env) as child:
        os.close(side)
        seen = b""
        while True:
            try:
                part = os.read(main, 65536)
            except OSError:  # how Linux reports that the other side is closed
                break
            if not part:
                break
            seen += part
        os.close(main)
        code = child.wait(timeout=300)
    return code, seen.decode("utf-8", errors="replace")


def run_killed(words: list[object], root: Path, at: int | None = None) -> int:
    """Run a command in a copy of this process that is killed before its change number `at` of the files under `root`.

    Every creation, opening for writing, rename, deletion, fsync and exchange counts. Returns how many there were; with
    `at=None` nothing is killed and the command must succeed.
    """
    reading, writing = os.pipe()
    child = os.fork()
    if child == 0:
        try:
            os.close(reading)
            changes = _count_changes(root, at)
            result = call(*words)
            if result.exception is not None and not isinstance(result.exception, SystemExit):
                traceback.print_exception(result.exception)
            os.write(writing, struct.pack("ii", len(changes), result.exit_code))
        finally:
            os._exit(0)
    os.close(writing)
    answer = os.read(reading, 8)
    os.close(reading)
    os.waitpid(child, 0)
    if at is not None and not answer:
        return at
    count, code = struct.unpack("ii", answer)
    assert code == 0, f"{words} ended with {code}"
    return int(count)


def _count_changes(root: Path, at: int | None) -> list[str]:
    """Record every change of files under `root` in this process; change number `at` kills it."""
    seen: list[str] = []

    def change(event: str) -> None:
        if len(seen) == at:
            os.kill(os.getpid(), signal.SIGKILL)
        seen.append(event)

    def audit(event: str, args: tuple[Any, ...]) -> None:
        if event == "open":
            relevant = isinstance(args[2], int) and args[2] & (os.O_WRONLY | os.O_RDWR | os.O_CREAT)
        else:
            relevant = event in ("os.rename", "os.remove", "os.mkdir", "os.rmdir", "os.truncate", "os.link")
        if relevant and isinstance(args[0], (str, os.PathLike)) and str(args[0]).startswith(str(root)):
            change(event)

    sync, exchange = os.fsync, files.exchange

    def counted_sync(handle: int) -> None:
        change("fsync")
        sync(handle)

    def counted_exchange(one: Path, other: Path) -> bool:
        change("exchange")
        done = exchange(one, other)
        change("exchanged")
        return done

    os.fsync, files.exchange = counted_sync, counted_exchange
    sys.addaudithook(audit)
    return seen


def plain(seen: str) -> list[str]:
    """Lines as they stand on the screen."""
    return CONTROL.sub("", seen).split("\n")
