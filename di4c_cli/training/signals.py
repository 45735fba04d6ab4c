"""Ctrl-C and SIGTERM: the first asks the loop to stop after its step, the second leaves at once."""

from __future__ import annotations

import os
import signal
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from types import FrameType
from typing import Any

from di4c_cli.errors import Di4cError


class Stopped(Di4cError):
    """The run was asked to stop and did, with a checkpoint."""

    exit_code = 130


class StopRequest:
    """Becomes true when a signal arrives."""

    def __init__(self, loud: bool = True) -> None:
        self.asked, self.loud = False, loud

    def __call__(self, number: int, frame: FrameType | None) -> None:
        if self.asked:
            self._tell("di4c: left at once; the last checkpoint is intact.\n")
            os._exit(130)
        self.asked = True
        self._tell("di4c: finishing this step, then writing a checkpoint. Ctrl-C again leaves at once.\n")

    def _tell(self, text: str) -> None:
        if self.loud:
            # straight to the descriptor: the handler may interrupt a write of the same stream
            os.write(sys.__stderr__.fileno() if sys.__stderr__ else 2, text.encode())


@contextmanager
def stop_on_signal(loud: bool = True) -> Iterator[StopRequest]:
    """Listen for SIGINT and SIGTERM while the block runs; the former handlers come back afterwards."""
    request = StopRequest(loud)
    before: dict[int, Any] = {}
    for number in (signal.SIGINT, signal.SIGTERM):
        try:
            before[number] = signal.signal(number, request)
        except ValueError:  # not the main thread (a notebook's worker): signals stay as they are
            break
    try:
        yield request
    finally:
        for number, handler in before.items():
            signal.signal(number, handler)
