"""Teachers of another package: the example beside this file, installed the way pip would record it."""

from __future__ import annotations

import re
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest
import torch
from safetensors.torch import save_file
from typer.testing import CliRunner

from di4c_cli import load
from di4c_cli.cli.app import app
from di4c_cli.errors import Failure

PACKAGE = Path(__file__).parent / "example_package"


@pytest.fixture
def installed(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[Path]:
    """The package's modules on the path, and the metadata that its pyproject.toml stands for."""
    points = re.search(r"\[project.entry-points.+?\]\n(.+)", (PACKAGE / "pyproject.toml").read_text(), re.S)
    assert points is not None
    metadata = tmp_path / "random_teacher-1.0.dist-info"
    metadata.mkdir()
    (metadata / "METADATA").write_text("Metadata-Version: 2.1\nName: random-teacher\nVersion: 1.0\n")
    (metadata / "entry_points.txt").write_text("[di4c.teachers]\n" + points.group(1).replace('"', ""))
    monkeypatch.syspath_prepend(str(tmp_path))
    monkeypatch.syspath_prepend(str(PACKAGE / "src"))
    yield metadata
    for name in [name for name in sys.modules if name.startswith("random_teacher")]:
        del sys.modules[name]


def test_plugin_adds_a_name(installed: Path) -> None:
    model = load("random-teacher")
    x = torch.full((2, 6), 5)
    assert model.log_probs(x, 1.0).shape == (2, 6, 5)
    listing = CliRunner().invoke(app, ["teachers"])
    assert listing.exit_code == 0 and "random-teacher" in listing.stdout


def test_plugin_adds_a_format(installed: Path, tmp_path: Path) -> None:
    model = load("random-teacher")
    flat = torch.cat([tensor.flatten() for tensor in model.denoiser.network.state_dict().values()])
    save_file({"all_numbers": flat}, tmp_path / "teacher.file")
    x = torch.full((2, 6), 5)
    assert torch.equal(load(str(tmp_path / "teacher.file")).log_probs(x, 1.0), model.log_probs(x, 1.0))


def test_plugin_error_names_a_broken_package(installed: Path) -> None:
    (installed / "entry_points.txt").write_text("[di4c.teachers]\nrandom-teacher = random_teacher:nothing\n")
    with pytest.raises(Failure, match="'random-teacher' of the package random-teacher cannot be imported"):
        load("random-teacher")


def test_plugin_error_does_not_affect_other_models(installed: Path, tmp_path: Path) -> None:
    (installed / "entry_points.txt").write_text("[di4c.teachers]\nrandom-teacher = random_teacher:nothing\n")
    assert load("digits").name == "digits"
    save_file({"all_numbers": torch.zeros(3)}, tmp_path / "teacher.file")
    with pytest.raises(Failure, match="cannot be imported"):
        load(str(tmp_path / "teacher.file"))


def test_plugin_does_not_replace_an_embedded_model(installed: Path, caplog: pytest.LogCaptureFixture) -> None:
    (installed / "entry_points.txt").write_text("[di4c.teachers]\ndigits = random_teacher:load\n")
    assert load("digits").config.network["length"] == 64
    assert "the one of the package random-teacher is ignored" in caplog.text
