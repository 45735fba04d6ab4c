"""Foreign text before a person sees it: control characters become visible escapes, long texts are shortened."""

from __future__ import annotations

import re
import unicodedata
from typing import Any

INVISIBLE_LETTERS = "\u115f\u1160\u3164\uffa0"
"""Fillers that count as letters and have no shape."""
MARKDOWN_MARKS = re.compile(r"[\\`*\[\]<>|~$&!@#]|(?<=:)//|(?<=www)\.", re.IGNORECASE)
"""What begins a link, an image, HTML, a table cell or a formula in Markdown; URLs are links by themselves."""


def printable(text: object, limit: int | None = 500, lines: bool = False) -> str:
    """The text on one line (with `lines`: its own lines), hidden characters as escapes such as `\\x1b`.

    Hidden are control, format (bidirectional, zero-width), private, unassigned and invalid characters. A text longer
    than `limit` loses its middle.
    """
    shown = _shorten(str(text), limit)
    if lines:
        shown = shown.replace("\r\n", "\n")
    if not shown.isprintable() or any(letter in shown for letter in INVISIBLE_LETTERS):
        kept = "\n\t" if lines else ""
        shown = "".join(c if c in kept or visible(c) else c.encode("unicode_escape").decode() for c in shown)
    return _shorten(shown, limit)


def markdown(text: object, limit: int = 200) -> str:
    """The text on one line, escaped so that Markdown shows it as it stands."""
    return MARKDOWN_MARKS.sub(lambda found: "\\" + found[0], printable(text, limit))


def visible(char: str) -> bool:
    """Whether a character has a shape, or is a space."""
    return (char.isprintable() or unicodedata.category(char) == "Zs") and char not in INVISIBLE_LETTERS


def storable(value: Any) -> Any:
    """A tree for a JSON or YAML file: bytes of a path that are not text in this locale become escapes."""
    if isinstance(value, str):
        return value.encode("utf-8", "backslashreplace").decode()
    if isinstance(value, dict):
        return {storable(key): storable(one) for key, one in value.items()}
    return [storable(one) for one in value] if isinstance(value, list) else value


def _shorten(text: str, limit: int | None) -> str:
    """Both ends of a long text: a sentence keeps its beginning and its advice."""
    if limit is None or len(text) <= limit:
        return text
    tail = limit // 3
    return f"{text[: limit - tail - 1]}…{text[len(text) - tail :]}"
