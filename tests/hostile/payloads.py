"""Strings of a stranger that do something to a terminal, a table, a page or a picture, and what no output may hold."""

from __future__ import annotations

import os
import re
from typing import Any

PAYLOADS = {
    "colour": "\x1b[31mred\x1b[0m",
    "title": "\x1b]0;owned\x07",
    "hyperlink": "\x1b]8;;https://evil.example\x1b\\click\x1b]8;;\x1b\\",
    "clear": "\x1b[2J\x1b[H",
    "c1": "\x9b31m\x9d0;owned\x9c\x85",
    "return": "safe\rdi4c: paste your token here:",
    "lines": "safe\ndi4c: paste your token here:\v\f",
    "backspace": "abc\b\b\b\x7f",
    "bidi": "\u202egnp.\u2066exe\u2069\u200f",
    "zero-width": "a\u200bb\u2060\ufeff\U000e0041",
    "separator": "a\u2028b\u2029c\x1c",
    "filler": "a\u3164\u115f",
    "markup": "[/nope]",
    "link": "[link=https://evil.example]x[/link][red]",
    "markdown": "![x](https://evil.example/a.png) [x](https://evil.example) https://evil.example www.evil.example",
    "html": "<script>alert(1)</script><img src=x onerror=alert(1)> | a | `b`",
    "front-matter": "---\nlicense: mit\n---\n# title",
    "mathtext": "$\\frac{1}{ $\\nope$ _x",
    "format": "{0.__class__} %s %n {task.description}",
    "surrogate": "a\ud800b\udcff",
    "nul": "a\x00b",
    "long": "A" * 100_000,
    "long hidden": "\x1b[31m" * 20_000,
    "unassigned": "\U0010ffff\ufdd0\ue000",
}
PAYLOADS["all"] = "".join(
    text for name, text in PAYLOADS.items() if not name.startswith("long") and name != "surrogate"
)
ENCODABLE = [name for name, text in PAYLOADS.items() if name != "surrogate"]
"""Payloads that a UTF-8 file can hold."""
FULL = os.environ.get("DI4C_HOSTILE") == "full"
SLOW_SINKS = ENCODABLE if FULL else ["all"]
"""Payloads for commands that take a second: all with DI4C_HOSTILE=full, else the one that joins them."""
MAX_OUTPUT = 30_000
DANGEROUS_HTML = re.compile(r"<(?:script|img|iframe|a )", re.IGNORECASE)


def assert_printable(text: str) -> None:
    """Lines of visible characters and nothing else."""
    for line in text.split("\n"):
        hidden = [char for char in line if not char.isprintable() and char not in "\t\xa0"]
        assert not hidden, ascii(line[:300])
    assert not re.search("[\u3164\u115f]", text)
    assert len(text) < MAX_OUTPUT


def assert_clean(result: Any, *codes: int) -> None:
    """A command ended as it should, without a bug, and printed nothing hidden."""
    assert result.exception is None or isinstance(result.exception, SystemExit), repr(result.exception)
    assert result.exit_code in (codes or (0, 1, 2)), result.stderr[-2000:]
    assert "Unexpected error" not in result.stderr and "Traceback" not in result.output, result.stderr[-2000:]
    assert_printable(result.stdout)
    assert_printable(result.stderr)


def assert_inert_markdown(card: str) -> None:
    """No link, image, HTML or new section outside code."""
    prose = re.sub(r"```[\s\S]*?```|`[^`\n]*`|^    .*$", "", card, flags=re.MULTILINE)
    prose = prose.split("\n---\n", 1)[1]
    assert not re.search(r"(?<!\\)[\[<]|https?://|(?<!\\)www\.", prose, re.IGNORECASE), prose
    assert card.count("\n---\n") == 1
