"""The two kinds of errors that the CLI prints as one sentence."""

from __future__ import annotations

from di4c_cli.printable import printable

SENTENCE_LIMIT = 2000
"""Characters of an error; a foreign name inside it may be of any length."""


class Di4cError(Exception):
    """A problem in one sentence; `hint` is the next thing to do."""

    exit_code = 1

    def __init__(self, message: str, hint: str = "") -> None:
        self.message = printable(message, SENTENCE_LIMIT)
        self.hint = printable(hint, SENTENCE_LIMIT)
        super().__init__(f"{self.message} {self.hint}" if hint else self.message)


class NameWarning(FutureWarning):
    """A name may mean another thing than its user thinks: an older name, a path of that name, a file of two sets."""


class UserError(Di4cError):
    """The request is impossible: exit code 2, nothing is written."""

    exit_code = 2


class Failure(Di4cError):
    """Network, disk or data failed: exit code 1."""

    exit_code = 1


def first_line(error: BaseException) -> str:
    """`ValueError: what happened`, on one line."""
    try:
        said = str(error).strip().split("\n")[0].rstrip(".")
    except Exception:  # the message of a foreign class
        said = ""
    return printable(f"{type(error).__name__}: {said}" if said else type(error).__name__, 300)
