"""Command lines that a page shows: in indented and fenced blocks, and inline where they have an argument."""

from __future__ import annotations

import re
from dataclasses import dataclass
from pathlib import Path

NOT_COMMANDS = ("text", "python", "toml", "yaml", "json")
"""Fences of these kinds hold output, code of other kinds or files; all others hold commands."""
PROGRAM = r"(?:di4c|python3?|make|accelerate|pip|npm)"
COMMAND = re.compile(rf"(?:[A-Z][A-Z0-9_]*=\S* )*(?:\S*/)?{PROGRAM}(?: .*)?")
OURS = re.compile(r"\bdi4c (?:--[a-z]+ )?[a-z]")
"""What looks like one of our commands, wherever it stands."""


@dataclass(frozen=True)
class Piece:
    """A piece of code on a page: one line of a block, its continuations joined, or an inline span."""

    text: str
    block: bool


def pieces(page: str) -> list[Piece]:
    """All code of a page but that of other languages and of output, in its order."""
    out: list[Piece] = []
    prose: list[str] = []
    fence, kept, previous = None, "", ""

    def settle() -> None:
        """A paragraph has ended: its inline spans, which may go over a line's end."""
        for span in re.findall(r"`([^`]+)`", "\n".join(prose)):
            out.append(Piece(" ".join(span.split()), block=False))
        prose.clear()

    for line in [*page.splitlines(), ""]:
        mark = re.match(r"\s*```(\w*)", line)
        if mark:
            settle()
            fence = mark[1] if fence is None else None
            continue
        indented = line.startswith("    ") and (not previous.strip() or previous.startswith("    "))
        previous = line
        if fence in NOT_COMMANDS:
            continue
        if fence is not None or indented:
            settle()
            kept += line.strip().removeprefix("$ ")
            if kept.endswith("\\"):
                kept = kept[:-1].rstrip() + " "
                continue
            out.append(Piece(kept, block=True))
            kept = ""
        elif line.strip():
            prose.append(line)
        else:
            settle()
    return out


def command_of(piece: Piece) -> str | None:
    """The command without its remark, or None: a name alone, inline, is a mention of the command."""
    command = re.split(r"\s{2,}|\s+#|\s+\(", piece.text)[0].strip()
    if not COMMAND.fullmatch(command) or (not piece.block and len(command.split()) < 3):
        return None
    return command


def commands(page: str) -> list[str]:
    """Each command line of a page once."""
    return list(dict.fromkeys(filter(None, map(command_of, pieces(page)))))


def header(recipe: Path) -> str:
    """The command in the first line of a recipe."""
    first = recipe.read_text(encoding="utf-8").splitlines()[0]
    assert first.startswith("# di4c "), f"{recipe} does not begin with the command that runs it"
    return re.split(r"\s{2,}|\s+\(", first.removeprefix("# "))[0]


def overlooked(page: str) -> list[str]:
    """Code that looks like a command of ours and was not collected: found by another way than `pieces`.

    All between backticks or behind four spaces counts as code; fences of output and other languages do not.
    """
    text = re.sub(rf"^\s*```(?:{'|'.join(NOT_COMMANDS)})\n.*?^\s*```$", "", page, flags=re.M | re.S)
    found = set(commands(page))
    missed = []
    blocks = re.findall(r"^(?: {4,}|\t)(.*)$", text, re.M)
    fenced = [line for body in re.findall(r"```\w*\n(.*?)```", text, re.S) for line in body.splitlines()]
    for line in (*blocks, *fenced):
        start = re.split(r"\s{2,}|\s+#|\s*\\$|\s+\(", line.strip().removeprefix("$ "))[0]
        mentioned = re.sub(r"`[^`]*`", "", line)  # a folder tree may name a command
        if OURS.search(mentioned) and not any(start in command for command in found):
            missed.append(line.strip())
    prose = re.sub(r"^(?: {4,}|\t).*$", "", re.sub(r"```.*?```", "", text, flags=re.S), flags=re.M)
    for span in re.findall(r"`([^`]*)`", prose):
        start = " ".join(span.split())
        if OURS.search(start) and len(start.split()) > 2 and start.split(" (")[0] not in found:
            missed.append(start)
    return missed
