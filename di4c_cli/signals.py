"""SIGINT and SIGTERM end a command within seconds, with one sentence and 128 + the signal's number.

Python runs signal handlers between two bytecodes only, so a thread watches as well: a command that is still inside
native code after `GRACE_SECONDS` is ended by the thread. A process that a launcher started also ends with its launcher.
Files are written atomically, so nothing is lost by an abrupt end.
"""

from __future__ import annotations

import functools
import os
import select
import signal
import threading
import time
from collections.abc import Callable, Iterable, Iterator
from contextlib import contextmanager, suppress
from types import FrameType
from typing import Any, ParamSpec

from di4c_cli.errors import Di4cError

LAUNCHER_VARIABLE = "DI4C_LAUNCHED"
"""Environment variable of launched processes; its value is the process id of the launcher."""
SIGNALS = (signal.SIGINT, signal.SIGTERM)
GRACE_SECONDS = 10.0
POLL_SECONDS = 2.0
SAME_KEY_PRESS_SECONDS = 0.2
"""A second signal within this time belongs to the same key press: some launchers send it twice."""

Arguments = ParamSpec("Arguments")


class Interrupted(KeyboardInterrupt):
    """A signal arrived while a command runs."""


class StoppedBySignal(Di4cError):
    """A command ended because of a signal."""

    def __init__(self, number: int) -> None:
        super().__init__(_sentence(number))
        self.exit_code = 128 + number


class _State:
    """Signals are a matter of the whole process, and so is this."""

    installed = False
    received: int | None = None
    since = 0.0
    running = False
    repeated = False
    patience = 0


def install() -> None:
    """Handle the signals of a `di4c` process; called before anything slow is imported, and once more does nothing."""
    if _State.installed:
        return
    _State.installed = True
    for number in SIGNALS:
        if signal.getsignal(number) is not signal.SIG_IGN:  # `nohup` and shells ask to ignore some
            signal.signal(number, _handle)
    reading, writing = (_above_streams(handle) for handle in os.pipe())
    os.set_blocking(writing, False)
    signal.set_wakeup_fd(writing, warn_on_full_buffer=False)
    value = os.environ.get(LAUNCHER_VARIABLE, "")
    launcher = int(value) if value.isdecimal() and len(value) < 10 else None
    threading.Thread(target=_watch, args=(reading, launcher), daemon=True).start()


def leave() -> None:
    """End a stopped process of a process group without its tear-down, in which torch's threads abort."""
    if _State.received is not None and "WORLD_SIZE" in os.environ:
        os._exit(128 + _State.received)


def stoppable(command: Callable[Arguments, None]) -> Callable[Arguments, None]:
    """A command that raises `StoppedBySignal` after a signal, whatever native code made of the interruption."""

    @functools.wraps(command)
    def run(*args: Arguments.args, **options: Arguments.kwargs) -> None:
        _State.running = True
        try:
            command(*args, **options)
        except BaseException as error:
            number = _State.received or (signal.SIGINT if isinstance(error, KeyboardInterrupt) else None)
            if number is None:
                raise
            raise StoppedBySignal(number) from None
        finally:
            _State.running = False
        if _State.received is not None:
            raise StoppedBySignal(_State.received)

    return run


@contextmanager
def patience() -> Iterator[None]:
    """Inside, other handlers decide when the process ends: after a checkpoint, or with its child processes."""
    _State.patience += 1
    try:
        yield
    finally:
        _State.patience -= 1


@contextmanager
def handled(numbers: Iterable[int], handler: Callable[[int, FrameType | None], None]) -> Iterator[None]:
    """Inside, `handler` gets these signals; outside the main thread (a notebook's worker) they stay as they are."""
    before: dict[int, Any] = {}
    try:
        with suppress(ValueError):
            for number in numbers:
                before[number] = signal.signal(number, handler)
        yield
    finally:
        for number, previous in before.items():
            signal.signal(number, previous)


def _handle(number: int, frame: FrameType | None) -> None:
    now = time.monotonic()
    if _State.repeated and _State.running:
        _State.repeated = False
        raise Interrupted
    if _State.received is not None and now - _State.since < SAME_KEY_PRESS_SECONDS:
        return
    if not _State.running or _State.received is not None:  # nothing to tidy up, or the second signal
        _end(number)
    _State.received, _State.since = number, now
    raise Interrupted


def _watch(reading: int, launcher: int | None) -> None:
    """End the process if a signal outside of `patience` has not ended it in time; pass on the launcher's death."""
    pending, deadline = 0, float("inf")
    died = None if launcher is None else _death_of(launcher)
    while True:
        watched = [reading] if died is None or died < 0 else [reading, died]
        ready, _, _ = select.select(watched, [], [], POLL_SECONDS)
        for number in os.read(reading, 64) if reading in ready else b"":
            if number in SIGNALS and not pending and not _State.patience:
                pending, deadline = number, time.monotonic() + GRACE_SECONDS
        if time.monotonic() > deadline:
            _end(pending)
        if pending and not ready:  # some imports of native modules swallow the interruption
            _State.repeated = True
            os.kill(os.getpid(), pending)
        if died is not None and (died in ready or (died < 0 and os.getppid() != launcher)):
            died = None
            os.kill(os.getpid(), signal.SIGTERM)


def _death_of(process: int) -> int:
    """A descriptor that becomes readable when the process ends; negative where there is none, or it has ended."""
    try:
        return os.pidfd_open(process)
    except (AttributeError, OSError):
        return -1


def _end(number: int) -> None:
    try:
        os.write(2, f"di4c: {_sentence(number)}\n".encode())
    finally:
        os._exit(128 + number)


def _sentence(number: int) -> str:
    return f"Stopped by {signal.Signals(number).name}."


def _above_streams(handle: int) -> int:
    """The handle itself, or a copy above stdin, stdout and stderr if one of these was closed and it took its place."""
    handles = [handle]
    while handles[-1] <= 2:
        handles.append(os.dup(handles[-1]))
    for low in handles[:-1]:
        os.close(low)
    return handles[-1]
