"""The two kinds of errors that the CLI prints as one sentence."""

from __future__ import annotations


class Di4cError(Exception):
    """A problem in one sentence; `hint` is the next thing to do."""

    exit_code = 1

    def __init__(self, message: str, hint: str = "") -> None:
        super().__init__(message if not hint else f"{message} {hint}")
        self.message = message
        self.hint = hint


class UserError(Di4cError):
    """The request is impossible: exit code 2, nothing is written."""

    exit_code = 2


class Failure(Di4cError):
    """Network, disk or data failed: exit code 1."""

    exit_code = 1
