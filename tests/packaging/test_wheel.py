"""What is in the wheel: everything the commands need, nothing else. `tools/install_wheel.py` installs and uses it."""

from __future__ import annotations

import re
import zipfile
from pathlib import Path

import pytest

from di4c_cli import __version__, recipe_file
from di4c_cli.tasks.config import TASK_NAMES
from tools.install_wheel import ROOT, build

pytest.importorskip("hatchling")
MEGABYTES = 15
"""More than this would be a mistake: the embedded tasks are a promise to be small."""


@pytest.fixture(scope="module")
def wheel(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return build("wheel", tmp_path_factory.mktemp("dist"))


@pytest.fixture(scope="module")
def names(wheel: Path) -> set[str]:
    return set(zipfile.ZipFile(wheel).namelist())


@pytest.mark.slow
def test_wheel_has_every_module_and_data_file(names: set[str]) -> None:
    tracked = [path for path in (ROOT / "di4c_cli").rglob("*") if path.is_file() and "__pycache__" not in path.parts]
    assert {path.relative_to(ROOT).as_posix() for path in tracked} <= names
    assert {f"di4c_cli/recipes/{name}.yaml" for name in recipe_file.names()} <= names
    for task in TASK_NAMES:
        assert f"di4c_cli/embedded/{task}/student/model.safetensors" in names


def test_wheel_has_nothing_else(names: set[str]) -> None:
    folders = {name.split("/")[0] for name in names}
    assert folders == {"di4c_cli", f"di4c-{__version__}.dist-info"}
    assert not [name for name in names if re.search(r"__pycache__|\.py[co]$|/tests?/|golden", name)]


def test_wheel_has_the_documented_size(wheel: Path) -> None:
    size = wheel.stat().st_size / 1e6
    assert size < MEGABYTES
    page = (ROOT / "docs" / "packaging.md").read_text(encoding="utf-8")
    stated = re.search(r"wheel has (\d+(?:\.\d+)?) MB", page)
    assert stated is not None and abs(float(stated.group(1)) - size) < 1.0, f"docs/packaging.md: it has {size:.1f} MB"


def test_wheel_has_metadata(wheel: Path) -> None:
    archive = zipfile.ZipFile(wheel)
    (name,) = [name for name in archive.namelist() if name.endswith(".dist-info/METADATA")]
    text = archive.read(name).decode()
    for version in ("3.10", "3.11", "3.12", "3.13"):
        assert f"Classifier: Programming Language :: Python :: {version}" in text
    assert "Requires-Python: >=3.10" in text and "License-Expression: Apache-2.0" in text
    assert "Classifier: Typing :: Typed" in text
    for extra in ("text", "track", "dev"):
        assert f"Provides-Extra: {extra}" in text
    (points,) = [name for name in archive.namelist() if name.endswith("entry_points.txt")]
    assert "di4c = di4c_cli.__main__:main" in archive.read(points).decode()
