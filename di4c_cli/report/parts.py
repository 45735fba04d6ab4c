"""Pieces of HTML that several sections are made of."""

from __future__ import annotations

from html import escape


def table(header: list[str], rows: list[list[str]], wide: bool = False) -> str:
    """A table that scrolls sideways on a narrow screen."""
    mark = ' class="wide"' if wide else ""
    head = "".join(f"<th{mark}>{escape(text)}</th>" for text in header)
    body = "".join(
        "<tr>" + "".join(f"<td{mark}>{escape(text)}</td>" for text in row) + "</tr>" for row in rows
    )
    return f'<div class="scroll"><table><thead><tr>{head}</tr></thead><tbody>{body}</tbody></table></div>'


def folded(title: str, text: str) -> str:
    """Plain text behind a click."""
    return f"<details><summary>{escape(title)}</summary><pre>{escape(text)}</pre></details>"
