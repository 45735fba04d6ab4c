"""Output of the commands: results on stdout, everything else on stderr, errors in one sentence."""

from __future__ import annotations

import json
import re
import shlex
import sys
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import TYPE_CHECKING, Any

from di4c_cli.cli.guard import tell
from di4c_cli.errors import SENTENCE_LIMIT, UserError
from di4c_cli.files import output_path
from di4c_cli.printable import printable, visible

if TYPE_CHECKING:
    from rich.text import Text


CELL_LIMIT, LINE_LIMIT = 500, 5000
"""Characters of a table's cell and of a line of the result."""


def command_line(*words: object) -> str:
    """A command that can be copied; words with spaces are quoted, bytes that are no text are escaped."""
    return shlex.join(map(str, words)).encode("utf-8", "backslashreplace").decode()


def output_file(path: Path, suffix: str = "") -> Path:
    """The file that `--out` means, links followed; a device, a folder or another kind of file is rejected."""
    target, named = output_path(path), path.absolute()
    if target.is_dir():
        raise UserError(f"{path} is a folder.", "Name a file with --out.")
    # /dev/stdout leads to whatever file the shell redirects to, which must not be replaced
    device = named.parts[1] in ("dev", "proc") and not named.is_relative_to("/dev/shm")
    if device or target.is_symlink() or (target.exists() and not target.is_file()):
        raise UserError(f"{path} is not a regular file.", "Name another --out.")
    if suffix and path.suffix != suffix:
        raise UserError(f"{path.name} is not a {suffix} file.", "Choose another --out.")
    return target if path.is_symlink() else path


def silent(text: str = "", limit: int | None = None) -> None:
    """Instead of `say` in a process that prints nothing."""


def say(text: str = "", limit: int | None = SENTENCE_LIMIT) -> None:
    """Print a line for the user on stderr."""
    tell(text, limit)


def emit(text: object, lines: bool = False) -> None:
    """Print a result on stdout: one line, or with `lines` a text with its own lines."""
    print(printable(text, None if lines else LINE_LIMIT, lines), flush=True)


def file_name(text: str) -> str:
    """A foreign name as part of a file's name."""
    return re.sub(r"[^\w.@+=-]+", "-", text)[:100]


def emit_json(value: Any) -> None:
    """Print one JSON object on one line of stdout; hidden characters, and those the encoding lacks, are escapes."""
    unicode = (sys.stdout.encoding or "").lower().startswith("utf")
    text = json.dumps(value, ensure_ascii=not unicode, allow_nan=False)
    print(re.sub(r"[^ -~]", lambda found: found[0] if visible(found[0]) else _json_escape(found[0]), text), flush=True)


def _json_escape(char: str) -> str:
    """JSON's escape of a character; json.dumps leaves DEL as it is."""
    return json.dumps(char)[1:-1] if char != "\x7f" else "\\u007f"


def cell(text: object, limit: int | None = CELL_LIMIT, lines: bool = False) -> Text:
    """A text for Rich, without markup."""
    from rich.text import Text

    return Text(printable(text, limit, lines))


def show_table(title: str, columns: list[str], rows: list[list[str]]) -> None:
    """Print a table; in a terminal that is too narrow, print the rows as lists."""
    from rich.console import Console
    from rich.table import Table

    console = Console()
    if not console.is_terminal:
        console.width = max(console.width, 120)
    elif console.width < sum(len(column) + 3 for column in columns) + 1:
        console.print(cell(title))
        for row in rows:
            named = [f"{column}: {text}" for column, text in zip(columns, row) if text]
            for line in ("", *named):
                console.print(cell(line))
        return
    table = Table(title=cell(title), title_justify="left")
    for number, column in enumerate(columns):
        numeric = number > 0 and all(row[number][:1] in "0123456789-+±. –—" for row in rows)
        table.add_column(cell(column), justify="right" if numeric else "left", overflow="fold")
    for row in rows:
        table.add_row(*map(cell, row))
    console.print(table)


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
        TextColumn("{task.description}", markup=False),
        BarColumn(),
        MofNCompleteColumn(),
        TextColumn("{task.fields[rate]}", markup=False),
        TimeRemainingColumn(),
    )
    with Progress(*columns, console=console, transient=True) as bar:
        task = bar.add_task(printable(description, 80), total=total, rate="")

        def advance(count: int) -> None:
            bar.advance(task, count)
            speed = bar.tasks[0].speed
            bar.update(task, rate=f"{speed:.3g}/s" if speed else "")

        yield advance
