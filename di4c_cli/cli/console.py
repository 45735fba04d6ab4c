"""Output of the commands: results on stdout, everything else on stderr, errors in one sentence."""

from __future__ import annotations

import errno
import functools
import io
import json
import os
import shlex
import sys
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import Any, ParamSpec

import typer

from di4c_cli.errors import Di4cError, Failure

Arguments = ParamSpec("Arguments")


def fail(error: Di4cError) -> typer.Exit:
    """Print an error and return the exit to raise; an error without words was printed by another process."""
    if error.message:
        print(f"di4c: {error}", file=sys.stderr)
    return typer.Exit(error.exit_code)


def guarded(command: Callable[Arguments, None]) -> Callable[Arguments, None]:
    """A command that turns our own errors and those of the machine into one sentence and an exit code."""

    @functools.wraps(command)
    def run(*args: Arguments.args, **options: Arguments.kwargs) -> None:
        try:
            command(*args, **options)
        except Di4cError as error:
            raise fail(error) from None
        except BrokenPipeError:
            drop_output()
            raise typer.Exit(0) from None
        except OSError as error:
            raise fail(machine_fault(error)) from None
        except (MemoryError, RuntimeError) as error:
            shortage = memory_fault(error)
            if shortage is None:
                raise
            raise fail(shortage) from None

    return run


def drop_output() -> None:
    """Redirect stdout after its reader (`head`) closed the pipe, so that the flush at exit does not fail."""
    os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())


def machine_fault(error: OSError) -> Failure:
    """An error of the operating system as one sentence with the next thing to do."""
    what = str(error.filename or "A file")
    if error.errno in (errno.ENOSPC, errno.EDQUOT, errno.EFBIG):
        return Failure(f"The disk is full ({what}).", "Free space and run the same command again.")
    if error.errno in (errno.EACCES, errno.EPERM, errno.EROFS):
        return Failure(f"{what} cannot be accessed ({error.strerror}).", "Choose another folder or file.")
    if error.errno == errno.ENOENT:
        return Failure(f"{what} does not exist.", "Check the path; if it was deleted, put it back and run again.")
    where = f" ({error.filename})" if error.filename else ""
    return Failure(f"{error.strerror or error}{where}.", "Choose another folder or file.")


MEMORY_ERROR_DEVICES = {"DefaultCPUAllocator": "the CPU", "MPS backend": "mps", "CUDA": "cuda", "HIP": "cuda"}
"""Words of torch's messages, and the device that each names."""


def memory_fault(error: MemoryError | RuntimeError) -> Failure | None:
    """The error if memory ran out, recognised by its words without importing torch; None for other errors."""
    said = str(error)
    named = type(error).__name__ == "OutOfMemoryError" or "out of memory" in said
    if not (isinstance(error, MemoryError) or named or "DefaultCPUAllocator: can't allocate" in said):
        return None
    place = next((device for word, device in MEMORY_ERROR_DEVICES.items() if word in said), "the CPU")
    return Failure(
        f"Out of memory on {place}.",
        "Train with --micro-batch 1, sample with a smaller --batch-size; `di4c distill --dry-run` estimates the need.",
    )


def settle_streams() -> None:
    """Print characters that the encoding lacks as escapes: λ in ASCII, invalid file names in UTF-8."""
    for stream in (sys.stdout, sys.stderr):
        if isinstance(stream, io.TextIOWrapper):
            stream.reconfigure(errors="backslashreplace")


def command_line(*words: object) -> str:
    """A command that can be copied; words with spaces are quoted."""
    return shlex.join(map(str, words))


def say(text: str = "") -> None:
    """Print a line for the user on stderr."""
    print(text, file=sys.stderr, flush=True)


def emit_json(value: Any) -> None:
    """Print one JSON object on one line of stdout, with escapes unless the encoding has every character."""
    unicode = (sys.stdout.encoding or "").lower().startswith("utf")
    print(json.dumps(value, ensure_ascii=not unicode, allow_nan=False), flush=True)


def show_table(title: str, columns: list[str], rows: list[list[str]]) -> None:
    """Print a table; in a terminal that is too narrow, print the rows as lists."""
    from rich.console import Console
    from rich.table import Table

    console = Console()
    if not console.is_terminal:
        console.width = max(console.width, 120)
    elif console.width < sum(len(column) + 3 for column in columns) + 1:
        for line in (title, *_records(columns, rows)):
            console.print(line, markup=False, highlight=False)
        return
    table = Table(title=title, title_justify="left")
    for number, column in enumerate(columns):
        numeric = number > 0 and all(row[number][:1] in "0123456789-+±. –—" for row in rows)
        table.add_column(column, justify="right" if numeric else "left", overflow="fold")
    for row in rows:
        table.add_row(*row)
    console.print(table)


def _records(columns: list[str], rows: list[list[str]]) -> Iterator[str]:
    """The rows of a table as lists without empty cells."""
    for row in rows:
        yield ""
        yield from (f"{column}: {cell}" for column, cell in zip(columns, row) if cell)


@contextmanager
def progress(description: str, total: int | None) -> Iterator[Callable[[int], None]]:
    """A progress bar on stderr, if that is a terminal. Yields `advance(n)`."""
    from rich.console import Console
    from rich.progress import BarColumn, MofNCompleteColumn, Progress, TextColumn, TimeRemainingColumn

    console = Console(stderr=True)
    if not console.is_terminal:
        yield lambda count: None
        return
    columns = (
        TextColumn("{task.description}"),
        BarColumn(),
        MofNCompleteColumn(),
        TextColumn("{task.fields[rate]}"),
        TimeRemainingColumn(),
    )
    with Progress(*columns, console=console, transient=True) as bar:
        task = bar.add_task(description, total=total, rate="")

        def advance(count: int) -> None:
            bar.advance(task, count)
            speed = bar.tasks[0].speed
            bar.update(task, rate=f"{speed:.3g}/s" if speed else "")

        yield advance
