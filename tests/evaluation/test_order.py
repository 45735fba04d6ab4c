"""How many samples and which steps an evaluation takes when nobody says."""

from __future__ import annotations

from pathlib import Path

import pytest

from di4c_cli import recipe_file
from di4c_cli.errors import UserError
from di4c_cli.evaluation.order import DEFAULTS, _defaults


def write_run(folder: Path, **evaluation: object) -> Path:
    student = folder / "student"
    student.mkdir(parents=True)
    values = {f"evaluation.{key}": value for key, value in evaluation.items()}
    (folder / "recipe.yaml").write_text(recipe_file.dump(recipe_file.read("tiny-digits", values)))
    return student


def test_a_run_is_evaluated_as_its_recipe_says(tmp_path: Path) -> None:
    student = write_run(tmp_path / "run", steps=[3, 5], samples=77)
    assert _defaults(str(student), "tiny-digits") == (77, [3, 5])
    assert _defaults(str(student.parent), "tiny-digits") == (77, [3, 5])


def test_what_the_recipe_leaves_open_is_the_worlds(tmp_path: Path) -> None:
    n, steps = DEFAULTS["tiny-digits"]
    assert _defaults("tiny-digits-student", "tiny-digits") == (n, steps)
    assert _defaults(str(write_run(tmp_path / "run")), "tiny-digits") == (n, steps)
    assert _defaults(str(write_run(tmp_path / "other", samples=9)), "tiny-digits") == (9, steps)


def test_a_spoilt_recipe_is_told(tmp_path: Path) -> None:
    student = write_run(tmp_path / "run")
    (tmp_path / "run" / "recipe.yaml").write_text("evaluation: {steps: [0]}\n")
    with pytest.raises(UserError, match=r"steps\.0.*greater than or equal to 1"):
        _defaults(str(student), "tiny-digits")
