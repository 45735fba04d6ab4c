"""`di4c theory`: the command's tables, result file and plot."""

from __future__ import annotations

import json
from functools import partial
from pathlib import Path

import pytest
from PIL import Image
from typer.testing import CliRunner

from di4c_cli import theory
from di4c_cli.cli.app import app


@pytest.mark.slow
def test_theory_writes_table_and_plot(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Short training: the bound holds for any student."""
    monkeypatch.setattr(theory, "theorem_2", partial(theory.theorem_2, iterations=60))
    done = CliRunner().invoke(app, ["theory", "--out", str(tmp_path / "theory")])
    assert done.exit_code == 0, done.output
    found = json.loads(done.stdout.splitlines()[-1])
    assert found == json.loads((tmp_path / "theory" / "theory.json").read_text())
    assert [row["steps"] for row in found["theorem_1"]] == theory.STEPS
    assert all((row["lower"] or 0) < row["error"] <= row["upper"] + 1e-15 for row in found["theorem_1"])
    assert found["slope"] == pytest.approx(-1, abs=0.01)
    assert [row["latents"] for row in found["theorem_2"]] == theory.LATENTS
    assert all(row["student"] <= row["bound"] for row in found["theorem_2"])
    for part in ("lower bound c / N", "sum of one-step distances", "bound from its losses", "-1.007", "0.23919"):
        assert part in done.stdout
    assert Image.open(tmp_path / "theory" / "theory.png").size == (1100, 440)
