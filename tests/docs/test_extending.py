"""The examples of docs/extending.md, run as they stand there."""

from __future__ import annotations

import re
import runpy
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
import torch
from typer.testing import CliRunner

from di4c_cli import recipe_file
from di4c_cli.cli.app import app
from di4c_cli.noise import Noise
from di4c_cli.training.metrics import read_rows

PAGE = (Path(__file__).parents[2] / "docs" / "extending.md").read_text(encoding="utf-8")
BLOCK = re.compile(r"```(python|toml)\n(.*?)```", re.S)


def example(name: str) -> str:
    """The block whose first line names this file."""
    (found,) = [text for _, text in BLOCK.findall(PAGE) if text.startswith(f"# {name}")]
    return str(found)


def run(name: str, folder: Path) -> dict[str, Any]:
    """Write the file and run it; its names."""
    path = folder / name
    path.write_text(example(name), encoding="utf-8")
    return runpy.run_path(str(path))


@pytest.fixture
def here(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[Path]:
    monkeypatch.chdir(tmp_path)
    monkeypatch.syspath_prepend(str(tmp_path))
    yield tmp_path
    sys.modules.pop("my_teachers", None)


def test_no_example_is_left_out() -> None:
    files = [text.split()[1].rstrip(":") for kind, text in BLOCK.findall(PAGE) if kind == "python"]
    assert files == ["make_weights.py", "my_teachers.py", "reverse_loss.py", "left_to_right.py", "ink.py"]


def install(folder: Path) -> None:
    """What pip would write for the page's pyproject.toml: name, version, and its entry points."""
    (project,) = [text for kind, text in BLOCK.findall(PAGE) if kind == "toml"]
    value = dict(re.findall(r'^([\w-]+) = "(.*)"$', project, re.M))
    assert value["build-backend"] == "setuptools.build_meta" and 'py-modules = ["my_teachers"]' in project
    (group,) = re.findall(r'^\[project\.entry-points\."(.*)"\]$', project, re.M)
    points = project.partition(f'"{group}"]\n')[2].replace('"', "")
    info = folder / f"{value['name'].replace('-', '_')}-{value['version']}.dist-info"
    info.mkdir()
    (info / "METADATA").write_text(
        f"Metadata-Version: 2.1\nName: {value['name']}\nVersion: {value['version']}\n"
    )
    (info / "entry_points.txt").write_text(f"[{group}]\n{points}")


def test_a_teacher(here: Path) -> None:
    run("make_weights.py", here)
    (here / "my_teachers.py").write_text(example("my_teachers.py"), encoding="utf-8")
    install(here)
    commands = re.findall(r"^    di4c (.+)$", PAGE, re.M)
    assert len(commands) == 3
    for command in commands:
        words = command.split()
        if words[0] == "distill":
            words += ["--iterations", "1", "--batch", "2", "--latents", "2"]
        done = CliRunner().invoke(app, words)
        assert done.exit_code == 0, done.stderr
    assert "mine" in CliRunner().invoke(app, ["teachers"]).stdout


def test_a_loss(here: Path) -> None:
    names = run("reverse_loss.py", here)
    rows = read_rows(here / "runs" / "reverse" / "metrics.jsonl")
    assert len(rows) == 3 and all(row["reverse"] > 0 for row in rows)
    plain = recipe_file.read(
        "paper/tiny-digits", {"training.iterations": 3, "training.batch": 4, "objective.latents": 4}
    )
    names["distill"](plain, here / "plain", names["Options"]())
    (first, *_), (bare, *_) = rows, read_rows(here / "plain" / "metrics.jsonl")
    assert first["loss"] == pytest.approx(bare["loss"] + 0.1 * first["reverse"], rel=1e-5)


def test_a_sampler(here: Path) -> None:
    names = run("left_to_right.py", here)
    assert names["x"].shape == (6, 64) and int(names["x"].max()) < 8 and names["images"].shape == (6, 8, 8)
    walk, denoiser = names["left_to_right"], names["model"].denoiser
    alone = walk(denoiser, 4, Noise(0, [3]), torch.tensor([3]))
    assert torch.equal(alone[0], names["x"][3]), "sample 3 is the same in any batch"


def test_metric_example_registers_and_runs_a_scorer(here: Path, capsys: pytest.CaptureFixture[str]) -> None:
    names = run("ink.py", here)
    lines = capsys.readouterr().out.splitlines()
    assert len(lines) == 4 and lines[0].startswith("teacher 1 step")
    for cell in names["results"].cells:
        assert 0.05 < cell.figures["ink"].low < cell.figures["ink"].value < cell.figures["ink"].high < 0.95
