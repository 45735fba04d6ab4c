"""Defaults of an evaluation, its protocols of toy tasks, and the registry of scorers."""

from __future__ import annotations

from pathlib import Path

import pytest

from di4c_cli import recipe_file
from di4c_cli.errors import UserError
from di4c_cli.evaluation.config import EvaluationConfig
from di4c_cli.evaluation.pipeline import default_sizes, expand, prepare
from di4c_cli.model import load
from di4c_cli.tasks.config import TASK_NAMES
from di4c_cli.tasks.registry import TASKS, get_task, task_of

DIGITS = get_task("digits")


def write_run(folder: Path, **evaluation: object) -> Path:
    student = folder / "student"
    student.mkdir(parents=True)
    values = {f"evaluation.{key}": value for key, value in evaluation.items()}
    (folder / "recipe.yaml").write_text(recipe_file.dump(recipe_file.read("digits", values)))
    return student


def test_default_sizes_are_those_of_the_recipe(tmp_path: Path) -> None:
    student = write_run(tmp_path / "run", steps=[3, 5], samples=77)
    assert default_sizes(str(student), DIGITS) == (77, [3, 5])
    assert default_sizes(str(student.parent), DIGITS) == (77, [3, 5])


def test_default_sizes_fall_back_to_the_task(tmp_path: Path) -> None:
    n, steps = DIGITS.eval_samples, list(DIGITS.eval_steps)
    assert default_sizes("digits-student", DIGITS) == (n, steps)
    assert default_sizes(str(write_run(tmp_path / "run")), DIGITS) == (n, steps)
    assert default_sizes(str(write_run(tmp_path / "other", samples=9)), DIGITS) == (9, steps)


def test_default_sizes_reject_a_bad_recipe(tmp_path: Path) -> None:
    student = write_run(tmp_path / "run")
    (tmp_path / "run" / "recipe.yaml").write_text("evaluation: {steps: [0]}\n")
    with pytest.raises(UserError, match=r"steps\.0.*greater than or equal to 1"):
        default_sizes(str(student), DIGITS)


def test_prepare_rejects_an_unknown_scorer(tmp_path: Path) -> None:
    config = EvaluationConfig(student="digits-student", scorers=("feature",), out=tmp_path / "out")
    with pytest.raises(UserError, match=r"Unknown scorer 'feature'\. Did you mean 'features'"):
        prepare(config)


def test_prepare_gives_any_row_the_cells_of_the_student(tmp_path: Path) -> None:
    config = EvaluationConfig(student="digits-student", others={"b": "digits"}, protocol="digits", out=tmp_path / "out")
    cells = prepare(config).cells
    columns = {row: [cell.column for cell in cells if cell.row == row] for row in ("teacher", "student", "b")}
    assert columns["b"] == columns["student"] and len(columns["b"]) == len(DIGITS.protocol_steps)


def test_expand_gives_steps_saved_of_every_task(tmp_path: Path) -> None:
    configs = expand(EvaluationConfig(protocol="steps-saved", out=tmp_path))
    assert [config.student for config in configs] == [f"{name}-student" for name in TASKS]
    assert [config.out for config in configs] == [tmp_path / name for name in TASKS]
    alone = EvaluationConfig(protocol="steps-saved", student="digits-student")
    assert expand(alone) == [alone] and expand(EvaluationConfig()) == [EvaluationConfig()]


@pytest.mark.parametrize("name", TASKS)
def test_task_of_finds_the_task_of_teacher_and_student(name: str) -> None:
    assert task_of(load(name)) is TASKS[name] is task_of(load(f"{name}-student"))


@pytest.mark.slow
def test_tasks_have_data_that_fits_their_codec() -> None:
    for task in TASKS.values():
        data = task.data
        assert len(data.train) > len(data.held_out) > 0 and data.train.shape[1] == data.held_out.shape[1]
        assert len(task.codec.decode(data.held_out[:2])) == 2 and task.diversity in task.figures
    assert tuple(TASKS) == TASK_NAMES
