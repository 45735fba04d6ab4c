"""The live table: silent without a terminal, rate and time left with one."""

from __future__ import annotations

import io
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from rich.console import Console

from di4c_cli import recipe_file
from di4c_cli.cli import live
from di4c_cli.codec.grid import save_grid


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


def test_live_table_has_no_picture_without_colours(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    for step, level in ((100, 0), (200, 255)):
        images = np.full((16, 28, 28), level, np.uint8)
        save_grid(images, tmp_path / f"round-1-step-{step:08d}.png")
    for colours, off, drawn in (("truecolor", False, True), ("truecolor", True, False), (None, False, False)):
        screen = io.StringIO()
        made = Console(file=screen, force_terminal=True, width=120, color_system=colours, no_color=off)
        monkeypatch.setattr(live, "Console", lambda stderr, made=made: made)
        with live.LiveTable(recipe_file.read("digits"), tmp_path) as table:
            table({**rows(1)[0], "step": 700})
        assert ("▀" in screen.getvalue()) == ("step 00000200" in screen.getvalue()) == drawn
        assert "━" in screen.getvalue(), "a bar in any terminal"


def test_block_picture_has_the_colours_of_the_first_row(tmp_path: Path) -> None:
    images = np.zeros((16, 32, 32), np.uint8)
    images[0] = 200
    save_grid(images, tmp_path / "a.png", columns=4)
    lines = live.block_picture(tmp_path / "a.png").split("\n", allow_blank=False)
    assert len(lines) == live.PICTURE_LINES and {len(line) for line in lines} == {live.PICTURE_COLUMNS}
    middle = {span.start: str(span.style) for span in lines[4].spans}
    assert middle[8] == "#c8c8c8 on #c8c8c8" and middle[24] == "#000000 on #000000"
