"""Text files of any origin, streamed: documents of text, JSONL and Parquet files in pieces of bounded length.

Text is UTF-8; a mark of the byte order at the start is left out, everything else (CRLF, NUL) stays as it is. Invalid
UTF-8 and lone surrogates are rejected with their place, never replaced.
"""

from __future__ import annotations

import codecs
import gzip
import os
import re
import zlib
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from itertools import chain, islice
from pathlib import Path
from typing import IO, Any

from di4c_cli.errors import UserError
from di4c_cli.foreign import regular
from di4c_cli.foreign.structured import StructureError, is_unicode, parse_json

TEXT_FIELD = "text"
FIX_FILE = "Fix or remove the file."
PIECE_CHARACTERS = 2**18
"""A tokenizer needs about 60 bytes of memory per character, 16 MB for a piece."""
BLOCK_BYTES = 2**20
MAX_RECORD_BYTES = 2**28
"""A JSONL record is parsed as a whole; the longest book has 25 MB."""
MAX_GROUP_BYTES = 2**32
"""A row group of Parquet is decoded in one piece; writers make groups of 128 MB to 1 GB."""
ROWS_AT_ONCE = 64
"""Rows of Parquet in memory as Python strings."""
COMPRESSED = (".gz", ".parquet")
MAX_RATIO, SMALL_BYTES = 30, 2**24
"""Text compresses by less than 20 to 1; deflate reaches 1000 to 1 on zeros. Small files may unpack to 16 MB."""
MAX_HOLE_BYTES = 2**30
"""At the end of a text; such a file takes no room on the disk and hours to read."""
MAX_PROMPT_BYTES = 16 * 2**20
"""The longest model has 2^18 positions."""
PIECE_ENDS = [re.compile(pattern) for pattern in (r" (?=[^\W\d_])", r"\n(?=\S)", r"\s(?=\S)")]
"""A piece ends before a space that a letter follows, else before a line break, else before any white space.

Byte-level and word tokenizers end a token before such a space in any context, so the ids are those of the whole text.
"""

Document = str | Iterator[str]
"""A text, or the pieces of a long one."""


def documents(path: Path, kind: str, skip: int = 0) -> Iterator[Document]:
    """The documents of a file from number `skip` on: all of a text file, one a line of JSONL, one a row of Parquet.

    `kind` is the suffix that decides how the file is read.
    """
    if kind == ".parquet":
        return _parquet(path, skip)
    if kind in (".jsonl", ".ndjson"):
        records = (record_text(line, f"{path}, record {number}") for number, line in lines(path))
        return islice(records, skip, None)
    return islice(_whole(path), skip, None)


def pieces(text: str, size: int = PIECE_CHARACTERS) -> Iterator[str]:
    """A text in pieces of at most `size` characters (see `PIECE_ENDS`)."""
    start = 0
    while len(text) - start > size:
        stop = start + _cut(text[start : start + size])
        yield text[start:stop]
        start = stop
    yield text[start:]


def _cut(text: str) -> int:
    for pattern in PIECE_ENDS:
        places = [match.start() for match in pattern.finditer(text, len(text) // 2)]
        if places:
            return places[-1]
    return len(text)


def _whole(path: Path) -> Iterator[Document]:
    """The document of a text file; none if it is empty."""
    blocks = _decoded(path)
    first = ""
    for block in blocks:
        first += block
        if first.strip():
            yield _joined(first, blocks)
            return
        first = first[-PIECE_CHARACTERS:]  # white space alone is no document


def _joined(first: str, blocks: Iterator[str]) -> Iterator[str]:
    rest = first
    for block in blocks:
        *full, rest = pieces(rest + block)
        yield from full
    yield from pieces(rest)


def _decoded(path: Path) -> Iterator[str]:
    decoder, read = codecs.getincrementaldecoder("utf-8")("strict"), 0
    for block in chain(_blocks(path), [b""]):
        try:
            text = decoder.decode(block, final=not block)
        except UnicodeDecodeError as error:
            start = read - len(error.object) + len(block) + error.start
            raise UserError(f"{path}: byte {start} is not UTF-8.", FIX_FILE) from error
        yield text.removeprefix("\ufeff") if read == 0 else text
        read += len(block)


@contextmanager
def _opened(path: Path) -> Iterator[IO[bytes]]:
    try:
        with regular.open_regular(path) as file:
            _check_hole(path, file.fileno())
            yield gzip.GzipFile(fileobj=file) if path.suffix.lower() == ".gz" else file  # type: ignore[misc]
    except (OSError, EOFError, zlib.error) as error:
        raise UserError(f"{path} cannot be read: {error}.", FIX_FILE) from error


def _check_hole(path: Path, handle: int) -> None:
    """Reject a file whose end was never written; file systems that know no holes report none."""
    size = os.fstat(handle).st_size
    hole = os.lseek(handle, 0, os.SEEK_HOLE) if size > MAX_HOLE_BYTES else size
    try:
        while size - hole > MAX_HOLE_BYTES:
            hole = os.lseek(handle, os.lseek(handle, hole, os.SEEK_DATA), os.SEEK_HOLE)
    except OSError:  # no data after this hole
        raise UserError(f"{path} has no content from byte {hole} on.", FIX_FILE) from None
    finally:
        os.lseek(handle, 0, os.SEEK_SET)


def _blocks(path: Path) -> Iterator[bytes]:
    with _opened(path) as handle:
        check = _ratio_check(path)
        while block := handle.read(BLOCK_BYTES):
            check(len(block))
            yield block


def lines(path: Path) -> Iterator[tuple[int, bytes]]:
    """The lines of a file with their numbers from 1 on, without their line ends; empty ones are left out."""
    with _opened(path) as handle:
        check, number = _ratio_check(path), 0
        while line := handle.readline(MAX_RECORD_BYTES + 1):
            number += 1
            check(len(line))
            if len(line) > MAX_RECORD_BYTES:
                limit = regular.size_text(MAX_RECORD_BYTES)
                raise UserError(f"{path}, record {number} is longer than {limit}.", "Split the record.")
            if number == 1:
                line = line.removeprefix(codecs.BOM_UTF8)
            if line.strip():
                yield number, line.removesuffix(b"\n").removesuffix(b"\r")


def _ratio_check(path: Path) -> Callable[[int], None]:
    """Counts what a compressed file unpacks to, and rejects more than any text compresses."""
    limit = MAX_RATIO * path.stat().st_size + SMALL_BYTES
    total = 0

    def check(count: int) -> None:
        nonlocal total
        total += count
        if path.suffix.lower() in COMPRESSED and total > limit:
            raise UserError(f"{path} unpacks to more than {MAX_RATIO} times its size.", "Unpack it first.")

    return check


def record_text(line: bytes, where: str) -> str:
    """The text of a JSONL record: the field `text` of an object, or a string."""
    try:
        value: Any = parse_json(line)
    except StructureError as error:
        raise UserError(f"{where} is not JSON: {error}.", FIX_FILE) from error
    return _checked(value.get(TEXT_FIELD) if isinstance(value, dict) else value, where)


def _checked(value: Any, where: str) -> str:
    if not isinstance(value, str):
        raise UserError(f"{where} has no text in the field '{TEXT_FIELD}'.", FIX_FILE)
    return check_unicode(value, where)


def check_unicode(text: str, where: str) -> str:
    """The text itself, if it can be written as UTF-8."""
    if not is_unicode(text):
        raise UserError(f"{where} holds half of a surrogate pair, which is no character.", "Leave it out.")
    return text


def line_text(line: bytes, where: str) -> str:
    """A line of a text file."""
    try:
        return line.decode("utf-8")
    except UnicodeDecodeError as error:
        raise UserError(f"{where} is not UTF-8.", FIX_FILE) from error


def read_text(path: Path) -> str:
    """A whole short text file."""
    try:
        return regular.read_bytes(path, MAX_PROMPT_BYTES, "text").decode("utf-8-sig")
    except UnicodeDecodeError as error:
        raise UserError(f"{path} is not a text file: byte {error.start} is not UTF-8.", FIX_FILE) from error


def _parquet(path: Path, skip: int) -> Iterator[str]:
    """Row group by row group; groups before `skip` are not read."""
    file = _open_parquet(path)
    place = "its footer"
    with _reporting_damage(path, lambda: place):
        names = file.schema_arrow.names
        if names.count(TEXT_FIELD) != 1:
            held = f"has {names.count(TEXT_FIELD)} columns" if TEXT_FIELD in names else "has no column"
            raise UserError(f"{path} {held} '{TEXT_FIELD}' (it has {', '.join(names[:5])}).", "Rename the column.")
        first, check = 0, _ratio_check(path)
        for group in range(file.num_row_groups):
            facts, place = file.metadata.row_group(group), f"row group {group}"
            if first + facts.num_rows > skip:
                _check_group(path, group, facts.total_byte_size)
                batches = file.iter_batches(ROWS_AT_ONCE, row_groups=[group], columns=[TEXT_FIELD])
                for number, value in enumerate(chain.from_iterable(batch[0] for batch in batches), first):
                    if number >= skip:
                        text = _value(value, f"{path}, record {number}")
                        check(len(text))
                        yield text
            first += facts.num_rows


def _check_group(path: Path, group: int, size: int) -> None:
    limit = min(MAX_GROUP_BYTES, regular.in_memory_limit())
    if size > limit:
        problem = f"{path}, row group {group} has {regular.size_text(size)}, more than {regular.size_text(limit)}."
        raise UserError(problem, "Write smaller row groups.")


def _value(value: Any, where: str) -> str:
    try:
        return _checked(value.as_py(), where)
    except UnicodeDecodeError as error:
        raise UserError(f"{where} is not UTF-8.", FIX_FILE) from error


def _open_parquet(path: Path) -> Any:
    try:
        from pyarrow import parquet  # an optional dependency
    except ImportError as error:
        raise UserError("Parquet files need pyarrow.", "Run `pip install 'di4c[text]'`.") from error
    with _reporting_damage(regular.regular_file(path), lambda: "its footer"):
        return parquet.ParquetFile(path)


@contextmanager
def _reporting_damage(path: Path, place: Callable[[], str]) -> Iterator[None]:
    """Turn errors of pyarrow into one sentence with the place of the damage."""
    import pyarrow as arrow  # an optional dependency

    try:
        yield
    except (arrow.ArrowException, OSError, ValueError, OverflowError) as error:
        reason = (str(error).splitlines() or [type(error).__name__])[0]
        raise UserError(f"{path} is damaged at {place()}: {reason}.", "Fetch it again.") from error


def count_rows(path: Path) -> int:
    """Documents in a Parquet file, from its footer alone."""
    return int(_open_parquet(path).metadata.num_rows)
