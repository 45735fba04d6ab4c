"""Text files at a path: which there are, and the documents in them."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

from di4c_cli.foreign import text
from di4c_cli.foreign.text import Document

TEXT_SUFFIXES = (".txt", ".text", ".md")
SUFFIXES = (*TEXT_SUFFIXES, ".jsonl", ".ndjson", ".parquet")


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


def documents(path: Path, skip: int = 0) -> Iterator[Document]:
    """The documents of one file: all of a text file, one a line of JSONL, one a row of Parquet."""
    return text.documents(path, kind_of(path), skip)
