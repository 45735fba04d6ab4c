"""What every command must keep to, whatever it was given: the list of broken promises of an outcome."""

from __future__ import annotations

import re
import unicodedata

from tests.hostile.sandbox import BROKEN, CPU_SECONDS, MEMORY_BYTES, Outcome

CODES = (0, 1, 2, 130, 143)
RICH = re.compile(r"\x1b\[(?!8m)[0-9;]*m|\x1b\[\?25[lh]|\x1b\[[0-9]*[AKJG]|\r")
"""What Rich sends to a terminal: colours, the cursor, cleared lines. No concealed text (8) and no links."""
UNEXPECTED = ("Unexpected error, probably a bug", "installation of di4c is damaged")
OUT_OF_MEMORY = "Out of memory"
OUTPUTS = ("out", "runs", "evaluations", "tmp", "home", "samples", "latency.png", "theory.")
"""Beginnings of names that a command may write in its folder."""


def problems(outcome: Outcome, replaced: tuple[str, ...] = ()) -> list[str]:
    """Each broken promise in a few words; `replaced` names earlier outputs that the command may change, not lose."""
    return [*_ending(outcome), *_streams(outcome), *_use(outcome), *_files(outcome, replaced)]


def _ending(outcome: Outcome) -> list[str]:
    found = []
    said = outcome.stderr + outcome.stdout
    if outcome.code == BROKEN or "Traceback (most recent call last)" in said:
        found.append("traceback")
    elif any(words in said for words in UNEXPECTED):
        found.append("unexpected exception")
    elif outcome.code not in CODES:
        found.append(f"exit code {outcome.code}")
    elif outcome.code and not any(line.startswith("di4c: ") for line in outcome.stderr.splitlines()):
        found.append("no sentence")
    if outcome.stopped and outcome.code not in CODES:
        found.append("signal not obeyed")
    return found


def _streams(outcome: Outcome) -> list[str]:
    """Control, escape, bidirectional and invalid characters; newlines and tabs are harmless."""
    stdout = RICH.sub("", outcome.stdout) if outcome.terminal else outcome.stdout
    hidden = {
        char
        for char in set(stdout + outcome.stderr) - {"\n", "\t"}
        if unicodedata.category(char) in ("Cc", "Cf", "Cs", "Co", "Cn")
    }
    return [f"characters {sorted(map(ascii, hidden))} on the terminal"] if hidden else []


def _use(outcome: Outcome) -> list[str]:
    found = []
    if outcome.late:
        found.append("no end after SIGTERM" if outcome.stopped else "no end")
    elif outcome.seconds > CPU_SECONDS and not outcome.stopped:
        found.append("over 30 s")
    if outcome.peak > MEMORY_BYTES or OUT_OF_MEMORY in outcome.stderr:
        found.append("over 2 GB")
    if outcome.left:
        found.append(f"processes left: {outcome.left}")
    return found


def _files(outcome: Outcome, replaced: tuple[str, ...]) -> list[str]:
    """Inputs and earlier outputs stay as they are; nothing stays in the temporary folder."""
    before, after = outcome.before, outcome.after
    own = replaced or ("\0",)
    changed = [name for name, what in before.items() if after.get(name) != what and not name.startswith(own)]
    lost = [name for name in before if outcome.code and name not in after and name.startswith(own)]
    found = [f"changed: {changed[:3]}"] if changed else []
    found += [f"lost: {lost[:3]}"] if lost else []
    extra = [name for name in after if name not in before]
    stray = [name for name in extra if not name.startswith(OUTPUTS) and not name.startswith(own)]
    if stray:
        found.append(f"stray files: {stray[:3]}")
    leftovers = [name for name in extra if name.startswith("tmp/") and "di4c-crash" not in name]
    if leftovers:
        found.append(f"temporary files left: {leftovers[:3]}")
    return found
