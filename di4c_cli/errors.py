"""The two ways a command can end badly; the CLI prints either in one sentence."""

from __future__ import annotations


class Di4cError(Exception):
    """A problem told in one sentence; `hint` is the next thing to do."""

    exit_code = 1

    def __init__(self, message: str, hint: str = "") -> None:
        super().__init__(message if not hint else f"{message} {hint}")
        self.message = message
        self.hint = hint


class UserError(Di4cError):
    """The user asked for something impossible: exit code 2, nothing written."""

    exit_code = 2


class Failure(Di4cError):
    """Something outside the user's request broke (network, disk, data): exit code 1."""

    exit_code = 1
