"""The sentence and the picture at the end of an evaluation."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pytest
from PIL import Image

import di4c_cli
from di4c_cli.evaluation import comparison
from di4c_cli.evaluation.config import EvaluationConfig
from di4c_cli.evaluation.headline import find_headline, headlines
from di4c_cli.evaluation.pipeline import prepare
from di4c_cli.evaluation.results import Cell, Figure, ModelEntry, Results
from di4c_cli.evaluation.sampling import labels_of
from di4c_cli.tasks.registry import TASKS

TEACHER = {1: 40.0, 2: 20.0, 4: 10.0, 8: 5.0, 16: 4.9}
RECALL = {1: 0.2, 2: 0.4, 4: 0.6, 8: 0.8, 16: 0.8}


def results(
    student: dict[int, float],
    labels: str = "every class equally often",
    better: str = "lower",
    **rows: dict[int, float],
) -> Results:
    cells = []
    for row, curve in {"teacher": TEACHER, "student": student, **rows}.items():
        for steps, value in curve.items():
            figures = {"frechet": Figure(value=value, better=better), "recall": Figure(value=RECALL[steps])}  # type: ignore[arg-type]
            facts = {"n": 9, "seed": 0, "seconds": 1, "figures": figures, "labels": labels}
            cells.append(Cell(row=row, column=f"{steps} steps", steps=steps, **facts))  # type: ignore[arg-type]
    models = [ModelEntry(row="paper", ref="x", name="mine-di4c", kind="student", digest="", parameters=1)]
    facts = {"protocol": "p", "title": "t", "created": "now", "seconds": 1, "device": "cpu", "threads": 1}
    more = {"packages": {}, "instruments": [], "main": "frechet", "diversity": "recall"}
    return Results(**facts, **more, models=models, cells=cells)  # type: ignore[arg-type]


@pytest.mark.parametrize(
    ("student", "told"),
    [
        (
            {1: 10.0, 2: 1.0},
            "In 1 step the student is as good as the teacher in 4 (Fréchet distance): 4 times fewer steps, with 0.33 of"
            " the teacher's recall, both with labels.",
        ),
        (
            {2: 3.0, 4: 3.0},
            "In 2 steps the student is as good as the teacher in 8, where the teacher is near its best (Fréchet"
            " distance): 4 times fewer steps, with 0.50 of the teacher's recall, both with labels.",
        ),
        (
            {2: 25.0},
            "In 2 steps the student is worse than the teacher in 2 steps (Fréchet distance): it saves no steps.",
        ),
    ],
)
def test_headline_says_what_the_figures_say(student: dict[int, float], told: str) -> None:
    assert headlines(results(student)) == [told]


def test_headline_interpolates_between_the_teachers_steps() -> None:
    found = find_headline(results({1: 10 * 2**0.5}))
    assert found is not None and found.teacher_steps == pytest.approx(2 * 2**0.5)
    assert found.diversity == pytest.approx(0.2 / 0.5), "the teacher's recall halfway between 2 and 4 steps"


def test_headline_has_a_sentence_for_every_student_and_none_for_large_tables() -> None:
    told = headlines(results({1: 20.0}, "unconditional", paper={1: 40.0}))
    assert [line.split(" is ")[0] for line in told] == ["In 1 step the student", "In 1 step mine-di4c"]
    assert "labels" not in told[0] and "times" not in told[1]
    assert headlines(results({1: 20.0}, a={1: 1.0}, b={1: 1.0}, c={1: 1.0})) == []


def test_headline_needs_a_positive_loss_at_common_steps() -> None:
    assert headlines(results({})) == []
    assert headlines(results({1: 20.0}, better="higher")) == []
    assert headlines(results({1: -1.0})) == []


@pytest.mark.slow
def test_comparison_has_a_row_for_every_class(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """The panels hold the first samples of teacher, student and teacher, sorted by class."""
    drawn: dict[str, np.ndarray] = {}

    def draw(panels: dict[str, np.ndarray], names: object) -> bytes:
        drawn.update(panels)
        assert names == TASKS["digits"].class_names
        return real(panels, names)  # type: ignore[arg-type]

    real = comparison._draw
    monkeypatch.setattr(comparison, "_draw", draw)
    evaluation = prepare(EvaluationConfig(student="digits-student", steps=[1, 3], n=50, out=tmp_path))
    found = evaluation.run()
    assert found.comparison == "comparison.png" and Image.open(tmp_path / "comparison.png").width > 500
    assert list(drawn) == ["teacher, 1 step", "student, 1 step", "teacher, 3 steps"]
    teacher = di4c_cli.load("digits")
    x = teacher.sample(50, steps=3, seed=0, label=labels_of(teacher, "uniform", 0, 50))
    assert (drawn["teacher, 3 steps"][:5] == teacher.decode(x)[::10]).all(), "five images of class 0 first"
    assert all(cell.labels == "every class equally often" for cell in found.cells), "labels on both sides"
    assert found.ratios and "geometric mean" in found.ratios[0]


@pytest.mark.slow
def test_evaluation_of_a_toy_task_measures_the_teacher_at_more_steps(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    evaluation = prepare(EvaluationConfig(student="digits-student", n=50, out=tmp_path / "a"))
    steps = {row: [cell.steps for cell in evaluation.cells if cell.row == row] for row in ("teacher", "student")}
    assert steps == {"teacher": [1, 2, 4, 8, 16, 32], "student": [1, 2, 4, 8]}
    both = prepare(EvaluationConfig(student="digits-student", others={"a": "digits"}, n=50))
    assert both.out == Path("evaluations/digits-student"), "results belong to the student"
    plain = prepare(EvaluationConfig(student="digits-student", n=50, steps=[2], labels="none", out=tmp_path / "b"))
    assert [cell.steps for cell in plain.cells] == [2, 2] and plain.protocol.labels == "none"
