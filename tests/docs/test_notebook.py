"""examples/quickstart.ipynb: its code cells run in order in one namespace, as a kernel would run them."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest

NOTEBOOK = Path(__file__).parents[2] / "examples" / "quickstart.ipynb"


def code_cells() -> list[str]:
    tree = json.loads(NOTEBOOK.read_text(encoding="utf-8"))
    assert tree["nbformat"] == 4
    return ["".join(cell["source"]) for cell in tree["cells"] if cell["cell_type"] == "code"]


def test_notebook_is_stored_without_outputs() -> None:
    """Outputs would be stale pictures in every difference; the notebook makes them in three minutes."""
    for cell in json.loads(NOTEBOOK.read_text(encoding="utf-8"))["cells"]:
        assert cell["cell_type"] == "markdown" or (cell["outputs"], cell["execution_count"]) == ([], None)


@pytest.mark.slow
def test_notebook_runs(tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]) -> None:
    monkeypatch.chdir(tmp_path)
    monkeypatch.setenv("MPLBACKEND", "agg")
    names: dict[str, Any] = {}
    for number, code in enumerate(code_cells()):
        exec(compile(code, f"cell {number}", "exec"), names)
    assert "In 1 step the student is" in capsys.readouterr().out
    figures = [names["plt"].figure(number) for number in names["plt"].get_fignums()]
    assert len(figures) == 3 and all(figure.axes for figure in figures)
    names["plt"].close("all")
