"""Documents from text, JSONL and Parquet files; errors name the file and the record."""

from __future__ import annotations

import gzip
import json
import zlib
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from itertools import islice
from pathlib import Path
from typing import IO, Any

from di4c_cli.errors import UserError

TEXT_SUFFIXES = (".txt", ".text", ".md")
SUFFIXES = (*TEXT_SUFFIXES, ".jsonl", ".ndjson", ".parquet")
TEXT_FIELD = "text"
FIX_FILE = "Fix or remove the file."
READ_ERRORS = (OSError, EOFError, zlib.error)
"""The exceptions of damaged plain and gzipped files."""


def kind_of(path: Path) -> str:
    """The suffix that decides how a file is read; `.gz` may follow it."""
    suffixes = [suffix.lower() for suffix in path.suffixes]
    if suffixes and suffixes[-1] == ".gz":
        suffixes.pop()
    return suffixes[-1] if suffixes else ""


def text_files(path: Path) -> list[Path]:
    """The text files at a path in the order of their names; empty if there are none."""
    if path.is_file():
        return [path] if kind_of(path) in SUFFIXES else []
    return sorted(file for file in path.rglob("*") if file.is_file() and kind_of(file) in SUFFIXES)


def documents(path: Path, skip: int = 0) -> Iterator[str]:
    """The documents of one file: all of a text file, one a line of JSONL, one a row of Parquet."""
    kind = kind_of(path)
    if kind == ".parquet":
        return _parquet(path, skip)
    return islice(_lines(path) if kind in (".jsonl", ".ndjson") else _whole(path), skip, None)


def _open(path: Path) -> IO[bytes]:
    return gzip.open(path, "rb") if path.suffix.lower() == ".gz" else path.open("rb")  # type: ignore[return-value]


def _whole(path: Path) -> Iterator[str]:
    try:
        with _open(path) as handle:
            text = handle.read().decode("utf-8")
    except UnicodeDecodeError as error:
        raise UserError(f"{path}: byte {error.start} is not UTF-8.", FIX_FILE) from error
    except READ_ERRORS as error:
        raise UserError(f"{path} cannot be read: {error}.", FIX_FILE) from error
    if text.strip():
        yield text


def _lines(path: Path) -> Iterator[str]:
    try:
        with _open(path) as handle:
            for number, line in enumerate(handle, 1):
                if line.strip():
                    yield _record(line, path, number)
    except READ_ERRORS as error:
        raise UserError(f"{path} cannot be read: {error}.", FIX_FILE) from error


def _record(line: bytes, path: Path, number: int) -> str:
    try:
        value: Any = json.loads(line)
    except (ValueError, RecursionError) as error:
        raise UserError(f"{path}, record {number} is not JSON.", FIX_FILE) from error
    return _checked(value.get(TEXT_FIELD) if isinstance(value, dict) else value, path, number)


def _checked(value: Any, path: Path, number: int) -> str:
    if not isinstance(value, str):
        raise UserError(f"{path}, record {number} has no text in the field '{TEXT_FIELD}'.", FIX_FILE)
    return value


def _parquet(path: Path, skip: int) -> Iterator[str]:
    """Row group by row group; groups before `skip` are not read."""
    file = _open_parquet(path)
    place = "its footer"
    with _reporting_damage(path, lambda: place):
        if TEXT_FIELD not in file.schema_arrow.names:
            names = ", ".join(file.schema_arrow.names[:5])
            raise UserError(f"{path} has no column '{TEXT_FIELD}' (it has {names}).", "Rename the column.")
        first = 0
        for group in range(file.num_row_groups):
            count, place = file.metadata.row_group(group).num_rows, f"row group {group}"
            if first + count > skip:
                for number, text in enumerate(file.read_row_group(group, [TEXT_FIELD])[TEXT_FIELD], first):
                    if number >= skip:
                        yield _checked(text.as_py(), path, number)
            first += count


def _open_parquet(path: Path) -> Any:
    try:
        from pyarrow import parquet  # an optional dependency
    except ImportError as error:
        raise UserError("Parquet files need pyarrow.", "Run `pip install 'di4c[text]'`.") from error
    with _reporting_damage(path, lambda: "its footer"):
        return parquet.ParquetFile(path)


@contextmanager
def _reporting_damage(path: Path, place: Callable[[], str]) -> Iterator[None]:
    """Turn errors of pyarrow into one sentence with the place of the damage."""
    import pyarrow as arrow  # an optional dependency

    try:
        yield
    except (arrow.ArrowException, OSError) as error:
        reason = (str(error).splitlines() or [type(error).__name__])[0]
        raise UserError(f"{path} is damaged at {place()}: {reason}.", "Fetch it again.") from error


def count_rows(path: Path) -> int:
    """Documents in a Parquet file, from its footer alone."""
    return int(_open_parquet(path).metadata.num_rows)
