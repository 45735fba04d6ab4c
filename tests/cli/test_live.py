"""The live table: silent without a terminal, rate and time left with one."""

from __future__ import annotations

import io
from typing import Any

import pytest
from rich.console import Console

from di4c_cli import recipe_file
from di4c_cli.cli import live


def rows(count: int) -> list[dict[str, Any]]:
    return [{"round": 1, "step": n, "loss": 2.0, "corr": -0.5, "seconds": 0.1} for n in range(1, count + 1)]


def test_live_table_is_silent_without_a_terminal(capfd: pytest.CaptureFixture[str]) -> None:
    with live.LiveTable(recipe_file.read("digits")) as table:
        for row in rows(3):
            table(row)
    assert capfd.readouterr() == ("", "")


def test_live_table_shows_step_rate_time_left_terms_and_memory(monkeypatch: pytest.MonkeyPatch) -> None:
    screen = io.StringIO()
    monkeypatch.setattr(live, "Console", lambda stderr: Console(file=screen, force_terminal=True, width=120))
    monkeypatch.setattr(live, "REFRESH_SECONDS", -1.0)
    recipe = recipe_file.read("di4c/digits", {"training.iterations": 10, "rounds": 2})
    with live.LiveTable(recipe) as table:
        for row in rows(4):
            table(row)
    shown = screen.getvalue()
    for word in ("step", "rate", "left", "loss", "correlation", "memory", "round 1/2 4/10", "2.000", "-0.500", "MB"):
        assert word in shown
