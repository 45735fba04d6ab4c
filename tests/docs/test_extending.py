"""The examples of docs/extending.md and docs/extending-sampling.md, run as they stand there."""

from __future__ import annotations

import os
import re
import runpy
import shutil
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
import torch
from typer.testing import CliRunner

import di4c_cli
from di4c_cli import recipe_file
from di4c_cli.cli.app import app
from di4c_cli.noise import Noise
from di4c_cli.training.metrics import read_rows

DOCS = Path(__file__).parents[2] / "docs"
PAGE = "\n".join((DOCS / name).read_text(encoding="utf-8") for name in ("extending.md", "extending-sampling.md"))
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


def test_extending_page_examples_are_all_tested() -> None:
    files = [text.split()[1].rstrip(":") for kind, text in BLOCK.findall(PAGE) if kind == "python"]
    assert files == [
        "make_weights.py",
        "my_teachers.py",
        "reverse_kl_config.py",
        "reverse_kl.py",
        "left_to_right.py",
        "ink.py",
    ]


def install(folder: Path) -> None:
    """What pip would write for the page's pyproject.toml: name, version, and its entry points."""
    (project,) = [text for kind, text in BLOCK.findall(PAGE) if kind == "toml"]
    value = dict(re.findall(r'^([\w-]+) = "(.*)"$', project, re.M))
    assert value["build-backend"] == "setuptools.build_meta" and 'py-modules = ["my_teachers"]' in project
    (group,) = re.findall(r'^\[project\.entry-points\."(.*)"\]$', project, re.M)
    points = project.partition(f'"{group}"]\n')[2].replace('"', "")
    info = folder / f"{value['name'].replace('-', '_')}-{value['version']}.dist-info"
    info.mkdir()
    (info / "METADATA").write_text(f"Metadata-Version: 2.1\nName: {value['name']}\nVersion: {value['version']}\n")
    (info / "entry_points.txt").write_text(f"[{group}]\n{points}")


@pytest.mark.slow
def test_teacher_example_converts_and_trains(here: Path) -> None:
    run("make_weights.py", here)
    (here / "my_teachers.py").write_text(example("my_teachers.py"), encoding="utf-8")
    install(here)
    section = PAGE.partition("## A teacher\n")[2].partition("\n## ")[0]
    commands = re.findall(r"^    di4c (.+)$", section, re.M)
    assert len(commands) == 3
    for command in commands:
        words = command.split()
        if words[0] == "distill":
            words += ["--iterations", "1", "--batch", "2"]
        done = CliRunner().invoke(app, words)
        assert done.exit_code == 0, done.stderr
    assert "mine" in CliRunner().invoke(app, ["teachers"]).stdout


@pytest.mark.slow
def test_method_example_trains_from_two_files_one_registration_and_one_recipe(here: Path) -> None:
    package = here / "di4c_cli"
    shutil.copytree(Path(di4c_cli.__file__).parent, package, ignore=shutil.ignore_patterns("__pycache__"))
    shutil.copytree(recipe_file.folder(), here / "recipes")
    for name in ("reverse_kl_config.py", "reverse_kl.py"):
        (package / "methods" / name).write_text(example(name), encoding="utf-8")
    (registration,) = re.findall(r"```text\n(from di4c_cli\.methods\.reverse_kl_config.*?)```", PAGE, re.S)
    added, union = registration.splitlines()
    registry = package / "methods" / "__init__.py"
    (old,) = re.findall(r"^AnyMethodConfig = .*$", registry.read_text(), re.M)
    text = registry.read_text().replace(old, union)
    registry.write_text(text.replace("from di4c_cli.methods.config", f"{added}\nfrom di4c_cli.methods.config"))
    (recipe,) = re.findall(r"```yaml\n(# reverse-kl.*?)```", PAGE, re.S)
    (here / "reverse-kl.yaml").write_text(recipe, encoding="utf-8")
    command = [sys.executable, "-m", "di4c_cli", "distill", "--recipe", "reverse-kl.yaml", "--out", "run"]
    done = subprocess.run(command, env=os.environ | {"PYTHONPATH": str(here)}, capture_output=True, text=True)
    assert done.returncode == 0, done.stderr
    assert "reverse_kl" in done.stdout + done.stderr
    rows = read_rows(here / "run" / "metrics.jsonl")
    assert len(rows) == 3 and all(row["reverse_kl"] > 0 for row in rows)


def test_sampler_example_samples(here: Path) -> None:
    names = run("left_to_right.py", here)
    assert names["x"].shape == (6, 64) and int(names["x"].max()) < 8 and names["images"].shape == (6, 8, 8)
    alone = names["left_to_right"](names["model"], 4, Noise(0, [3]), torch.tensor([3]))
    assert torch.equal(alone[0], names["x"][3]), "sample 3 is the same in any batch"


def test_metric_example_registers_and_runs_a_scorer(here: Path, capsys: pytest.CaptureFixture[str]) -> None:
    names = run("ink.py", here)
    lines = capsys.readouterr().out.splitlines()
    assert len(lines) == 4 and lines[0].startswith("teacher 1 step")
    for cell in names["results"].cells:
        assert 0.05 < cell.figures["ink"].low < cell.figures["ink"].value < cell.figures["ink"].high < 0.95
