"""Terminals of any width, without colour, and pipes whose reader has gone."""

from __future__ import annotations

import io
import os
import subprocess

import pytest
from rich.cells import cell_len
from rich.console import Console

from di4c_cli import recipe_file
from di4c_cli.cli.console import show_table
from di4c_cli.cli.live import LiveTable
from tests.helpers.faults import command, in_terminal, plain

COMMANDS = [["--help"], ["sample", "--help"], ["recipes"], ["teachers"]]


@pytest.mark.slow
@pytest.mark.parametrize("columns", [80, 50])
@pytest.mark.parametrize("words", COMMANDS, ids=" ".join)
def test_output_is_not_wider_than_the_terminal(columns: int, words: list[str]) -> None:
    code, seen = in_terminal(columns, *words)
    assert code == 0, seen
    lines = plain(seen)
    assert max(map(cell_len, lines)) <= columns
    assert len(lines) > 10


@pytest.mark.parametrize("columns", [80, 40])
def test_show_table_becomes_a_list_in_a_narrow_terminal(columns: int, monkeypatch: pytest.MonkeyPatch) -> None:
    """Where the columns would be cut to single letters, rows are written as lists instead."""
    monkeypatch.setenv("COLUMNS", str(columns))
    monkeypatch.setenv("TERM", "xterm")
    stream = Screen()
    monkeypatch.setattr("sys.stdout", stream)
    header = ["Experiment", "side", "batch", "p50 (s)", "p95 (s)", "samples/s", "peak MB"]
    show_table("All sides", header, [["CIFAR-10", "teacher", "50", "1.2345", "2.3456", "12.5", ""]])
    lines = plain(stream.getvalue())
    assert max(map(cell_len, lines)) <= columns
    assert ("Experiment: CIFAR-10" in lines) == (columns == 40)
    assert any("1.2345" in line for line in lines), "figures are whole"


@pytest.mark.parametrize("columns", [80, 40])
def test_live_table_fits_the_terminal(columns: int) -> None:
    """Figures are whole at any width; a narrow terminal gets fewer of them."""
    recipe = recipe_file.read("di4c/digits")
    live = LiveTable(recipe)
    live._lines.append(["300/700", "12.3/s", "0:33", *["1.234"] * len(recipe.method.live_metrics), "512 MB"])
    console = Console(file=io.StringIO(), width=columns)
    console.print(live.table(columns))
    header, row, *_ = plain(console.file.getvalue())  # type: ignore[attr-defined]
    assert max(cell_len(header), cell_len(row)) <= columns and "…" not in header + row
    assert row.split()[0] == "300/700" and "correlation" in header
    assert ("marginal" in header) == (columns == 80)


def test_live_table_shows_the_kl_in_a_narrow_terminal() -> None:
    live = LiveTable(recipe_file.read("digits"))
    assert [str(column.header) for column in live.table(40).columns] == ["step", "left", "loss", "kl"]


class Screen(io.StringIO):
    """A stream that says it is a terminal."""

    def isatty(self) -> bool:
        return True


CLOSED = [["--help"], ["--version"], ["recipes"], ["recipes", "show", "digits"], ["teachers", "--json"]]


@pytest.mark.parametrize("words", CLOSED, ids=" ".join)
def test_command_ignores_a_closed_pipe(words: list[str]) -> None:
    """Every write fails from the first byte on; that is neither an error nor worth a word."""
    reading, writing = os.pipe()
    os.close(reading)
    done = subprocess.run(command(*words), stdout=writing, stderr=subprocess.PIPE, text=True, check=False)
    os.close(writing)
    assert done.stderr == "" and done.returncode == 0


@pytest.mark.slow
def test_sample_ignores_a_pipe_closed_by_head() -> None:
    words = " ".join(command("sample", "--teacher", "words", "--steps", 1, "-n", 40))
    script = f"set -o pipefail; {words} | head -n 1"
    done = subprocess.run(["bash", "-c", script], capture_output=True, text=True, check=False)
    assert done.returncode == 0 and len(done.stdout.splitlines()) == 1
    assert "Traceback" not in done.stderr and "BrokenPipe" not in done.stderr
