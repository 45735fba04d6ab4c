"""Ctrl-C and SIGTERM: the first asks the loop to stop after its step, the second leaves at once.

A stopped run ends with 128 + the signal's number, as shells report it: 130 after Ctrl-C, 143 after the SIGTERM
of a scheduler.
"""

from __future__ import annotations

import os
import signal
import sys
import time
from collections.abc import Iterator
from contextlib import contextmanager
from types import FrameType
from typing import Any

from di4c_cli.errors import Di4cError
from di4c_cli.training.launch import LAUNCHED

SAME_PRESS = 0.2
"""Seconds within which a second signal is the same key press: some launchers pass it on once more."""
INTERRUPTED = 128 + signal.SIGINT


class Stopped(Di4cError):
    """The run was asked to stop and did, with a checkpoint."""

    def __init__(self, message: str, hint: str = "", exit_code: int = INTERRUPTED) -> None:
        super().__init__(message, hint)
        self.exit_code = exit_code


class StopRequest:
    """`asked` becomes true when a signal arrives, or when the launcher that started this process has died."""

    def __init__(self, loud: bool = True) -> None:
        self.loud = loud
        self._first: dict[int, float] = {}
        self._parent = os.getppid() if os.environ.get(LAUNCHED) == str(os.getppid()) else None

    @property
    def asked(self) -> bool:
        """Looked at once a step."""
        return bool(self._first) or (self._parent is not None and os.getppid() != self._parent)

    @property
    def exit_code(self) -> int:
        """Of the first signal; a process that heard of it from another one counts it as Ctrl-C."""
        return 128 + next(iter(self._first), signal.SIGINT)

    def __call__(self, number: int, frame: FrameType | None) -> None:
        now = time.monotonic()
        if now - self._first.get(number, now) > SAME_PRESS:
            self._tell("di4c: left at once; the last checkpoint is intact.\n")
            os._exit(128 + number)
        if not self._first:
            self._tell(
                "di4c: finishing this step, then writing a checkpoint. A second signal leaves at once.\n"
            )
        self._first.setdefault(number, now)

    def _tell(self, text: str) -> None:
        if self.loud:
            # straight to the descriptor: the handler may interrupt a write of the same stream
            os.write(sys.__stderr__.fileno() if sys.__stderr__ else 2, text.encode())


@contextmanager
def stop_on_signal(loud: bool = True) -> Iterator[StopRequest]:
    """Listen for SIGINT and SIGTERM while the block runs; the former handlers come back afterwards."""
    request = StopRequest(loud)
    before: dict[int, Any] = {}
    for number in (int(signal.SIGINT), int(signal.SIGTERM)):
        try:
            before[number] = signal.signal(number, request)
        except ValueError:  # not the main thread (a notebook's worker): signals stay as they are
            break
    try:
        yield request
    finally:
        for number, handler in before.items():
            signal.signal(number, handler)
