"""Steps saved at equal quality: the reading of curves, the intervals, and the command."""

from __future__ import annotations

import json
import math
from pathlib import Path

import pytest
from typer.testing import CliRunner

from di4c_cli.cli.app import app
from di4c_cli.evaluation import protocols, run
from di4c_cli.evaluation.results import Cell, Figure, Results
from di4c_cli.evaluation.run import merge_repeats
from di4c_cli.evaluation.steps_saved import geometric_mean, mean_share, steps_for, steps_saved

CURVE = [(1, 80.0), (2, 40.0), (4, 20.0), (8, 10.0)]


@pytest.mark.parametrize(
    ("value", "steps", "beyond"),
    [
        (80.0, 1.0, False),
        (100.0, 1.0, False),
        (40.0, 2.0, False),
        (80.0 / 2**1.5, 2**1.5, False),
        (10.0, 8.0, False),
        (9.0, 8.0, True),
    ],
)
def test_steps_for_reads_a_straight_line(value: float, steps: float, beyond: bool) -> None:
    """Quality 80 / steps is a line in the logarithms, so every value has its exact answer."""
    found, outside = steps_for(CURVE, value)
    assert found == pytest.approx(steps) and outside is beyond


def test_steps_for_takes_the_best_of_a_curve_that_rises_again() -> None:
    assert steps_for([(1, 8.0), (2, 4.0), (4, 5.0), (8, 2.0)], 4.0) == (2.0, False)
    assert steps_for([(1, 8.0), (2, 4.0), (4, 5.0)], 3.0) == (4.0, True)


def test_geometric_mean_has_student_s_interval() -> None:
    figure = geometric_mean([1.0, 2.0, 4.0])
    assert figure.value == pytest.approx(2.0) and figure.repeats == [1.0, 2.0, 4.0]
    reach = 4.303 * math.log(2) / math.sqrt(3)
    assert figure.low == pytest.approx(2 * math.exp(-reach))
    assert figure.high == pytest.approx(2 * math.exp(reach))
    assert geometric_mean([3.0]).low is None


def test_mean_share_may_be_nothing_or_all() -> None:
    """Few samples: none is nearer to a training item, which has no logarithm."""
    figure = mean_share([0.0, 0.0, 0.3])
    assert figure.value == pytest.approx(0.1) and figure.low == 0.0 and 0.1 < (figure.high or 0) < 1.0
    assert mean_share([1.0, 0.9]).high == 1.0
    assert mean_share([0.0]).value == 0.0 and mean_share([0.0]).low is None


def repeated(row: str, steps: int, repeats: int = 3, **values: float) -> Cell:
    """A cell that had the same figures in every repeat."""
    figures = {name: Figure(value=value) for name, value in values.items()}
    one = Cell(row=row, column=f"{steps} steps", steps=steps, n=9, seed=0, seconds=1, figures=figures)
    return merge_repeats([one] * repeats)


def results_of(*cells: Cell, diversity: str = "recall") -> Results:
    facts = {"protocol": "p", "title": "t", "created": "now", "seconds": 1, "device": "cpu", "threads": 1}
    return Results(
        **facts,  # type: ignore[arg-type]
        packages={},
        models=[],
        instruments=[],
        cells=list(cells),
        diversity=diversity,
    )


def test_steps_saved_of_known_curves() -> None:
    """A student that is its teacher at four times the steps saves exactly four."""
    teacher = [
        repeated("teacher", k, frechet=80.0 / k, recall=0.8 if k < 16 else 1.2, nearer_to_training=0.5)
        for k in (1, 2, 4, 8, 16)
    ]
    student = [repeated("student", k, frechet=80.0 / (4 * k), recall=0.6, nearer_to_training=0.0) for k in (1, 2)]
    found = steps_saved(results_of(*teacher, *student))
    assert [entry.steps for entry in found] == [1, 2]
    for entry in found:
        assert entry.steps_saved.value == pytest.approx(4.0) and not entry.at_least
        assert entry.ratio.value == pytest.approx(0.25)
        assert entry.teacher_quality.value == pytest.approx(80.0 / entry.steps)
        assert entry.diversity is not None and entry.diversity.value == pytest.approx(0.75)
        assert entry.diversity_best is not None and entry.diversity_best.value == pytest.approx(0.5)
        assert entry.diversity_equal is not None and entry.diversity_equal.value == pytest.approx(0.75)
        assert entry.nearer_to_training is not None and entry.nearer_to_training.value == 0.0
        assert entry.teacher_nearer_to_training is not None
        assert entry.teacher_nearer_to_training.value == pytest.approx(0.5)


def test_steps_saved_of_a_row_compares_diversity_at_equal_quality() -> None:
    """The row is as good as the teacher at 2.83 steps, half-way between 2 and 4 in the logarithm."""
    teacher = [repeated("teacher", k, frechet=80.0 / k, recall=0.2 * k) for k in (1, 2, 4)]
    (entry,) = steps_saved(results_of(*teacher, repeated("mine", 1, frechet=80.0 / 8**0.5, recall=0.3)), "mine")
    assert entry.row == "mine" and entry.steps_saved.value == pytest.approx(8**0.5)
    assert entry.diversity_equal is not None and entry.diversity_equal.value == pytest.approx(0.3 / 0.6)


def test_steps_saved_needs_repeats_a_teacher_and_a_loss() -> None:
    teacher, student = repeated("teacher", 1, frechet=2.0), repeated("student", 1, frechet=1.0)
    (entry,) = steps_saved(results_of(teacher, student, diversity=""))
    assert entry.at_least and entry.diversity is None and entry.nearer_to_training is None
    assert steps_saved(results_of(student)) == []
    assert steps_saved(results_of(teacher, repeated("student", 2, frechet=1.0))) == []
    single = [repeated(row, 1, repeats=1, frechet=1.0) for row in ("teacher", "student")]
    assert steps_saved(results_of(*single)) == []
    zero = [repeated(row, 1, frechet=0.0) for row in ("teacher", "student")]
    assert steps_saved(results_of(*zero)) == []
    hot = teacher.model_copy(update={"column": "1 step, T 2"})
    assert steps_saved(results_of(teacher, hot, student)) == [], "a frontier"


@pytest.mark.slow
def test_tiny_speedup_runs_through_the_ordinary_pipeline(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(protocols, "TEACHER_STEPS", (1, 2))
    monkeypatch.setattr(protocols, "STUDENT_STEPS", (1,))
    monkeypatch.setattr(protocols, "STEPS_SAVED_REPEATS", 2)
    out = tmp_path / "out"
    line = ["eval", "--protocol", "steps-saved", "--student", "digits-student", "--limit", "40"]
    done = CliRunner().invoke(app, [*line, "--json", "--out", str(out)])
    assert done.exit_code == 0, done.output
    told = json.loads(done.stdout)
    assert told == json.loads((out / "results.json").read_text())
    assert {path.name for path in out.iterdir()} == {"parts", "quality.png", "report.html", "results.json", "samples"}
    assert told["task"] == "digits" and told["diversity"] == "recall"
    assert [(cell["row"], cell["steps"], cell["repeats"]) for cell in told["cells"]] == [
        ("teacher", 1, 2), ("teacher", 2, 2), ("student", 1, 2)
    ]  # fmt: skip
    (entry,) = told["steps_saved"]
    assert entry["steps_saved"]["low"] <= entry["steps_saved"]["value"]
    assert 0 <= entry["nearer_to_training"]["value"] <= 1
    assert "Steps saved at equal quality" in (out / "report.html").read_text()


@pytest.mark.slow
def test_tiny_speedup_resumes_and_takes_steps(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(protocols, "TEACHER_STEPS", (1,))
    line = ["eval", "--protocol", "steps-saved", "--student", "digits-student", "--limit", "40"]
    line += ["--repeats", "2", "--steps", "3", "--out", str(tmp_path / "out")]
    shown = CliRunner().invoke(app, line, env={"COLUMNS": "200"})
    assert shown.exit_code == 0 and "Steps saved at equal quality" in shown.stdout, shown.output
    first = json.loads((tmp_path / "out" / "results.json").read_text())
    assert [entry["steps"] for entry in first["steps_saved"]] == [3]
    assert [cell["steps"] for cell in first["cells"]] == [1, 3, 3]
    monkeypatch.setattr(run.CellSampling, "draw", lambda *_: pytest.fail("samples were drawn again"))
    again = CliRunner().invoke(app, [*line, "--json"])
    assert again.exit_code == 0 and json.loads(again.stdout)["steps_saved"] == first["steps_saved"]


@pytest.mark.parametrize(
    "flags",
    [
        ["--teacher", "digits"],
        ["--model", "b=digits"],
        ["--judge", "gpt2"],
        ["--samples", "x.npy"],
        ["--temperatures", "1"],
    ],
)
def test_tiny_speedup_rejects_flags_it_cannot_follow(flags: list[str], tmp_path: Path) -> None:
    line = ["eval", "--protocol", "steps-saved", "--out", str(tmp_path / "out")]
    done = CliRunner().invoke(app, [*line, *flags])
    assert done.exit_code == 2 and flags[0] in done.stderr and not (tmp_path / "out").exists()


def test_protocol_passes_the_device_on(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    line = ["eval", "--protocol", "steps-saved", "--out", str(tmp_path / "out"), "--device"]
    done = CliRunner().invoke(app, [*line, "nowhere"])
    assert done.exit_code == 2 and "no device 'nowhere'" in done.stderr
    used: list[tuple[object, ...]] = []

    def stop(*arguments: object) -> None:
        used.append(arguments[:4])
        raise KeyboardInterrupt

    monkeypatch.setattr("di4c_cli.evaluation.pipeline.load_models", stop)
    CliRunner().invoke(app, [*line, "cpu:0"])
    assert used == [("fashion-student", "fashion", {}, "cpu:0")]
