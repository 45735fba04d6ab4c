"""A contest of methods: the same information and compute for all, three students of each, and one table."""

from __future__ import annotations

import json
from pathlib import Path

import pytest
from typer.testing import CliRunner

from di4c_cli import recipe_file
from di4c_cli.cli.app import app
from di4c_cli.errors import UserError
from di4c_cli.evaluation.config import ScorerOptions
from di4c_cli.evaluation.results import load as load_results
from di4c_cli.model import load
from di4c_cli.tasks.registry import TASKS
from di4c_cli.training import compute
from di4c_cli.training.compute import forward_equivalents
from di4c_cli.training.round_data import information
from di4c_cli.training.sweep import prepare_evaluation
from di4c_cli.training.sweep_recipe import Sweep, SweepRow, read_sweep, row_recipes


@pytest.mark.parametrize(
    ("recipe", "labels", "changes", "expected"),
    [
        ("variational/words", None, {}, "teacher and data"),
        ("digits", 10, {}, "teacher and data, labels"),
        ("digits", 10, {"training.synthetic_share": 1.0}, "teacher only, labels"),
        ("digits", 10, {"data": "teacher", "training.label_dropout": 1.0}, "teacher only"),
        ("words", None, {}, "teacher only"),
    ],
)
def test_information_is_what_the_recipe_uses(
    recipe: str, labels: int | None, changes: dict[str, object], expected: str
) -> None:
    assert information(recipe_file.read(recipe, changes), labels) == expected


def test_forward_equivalents_count_backward_passes_and_synthetic_samples() -> None:
    """A backward pass is two forward passes; a step of SDTT is two of the teacher and one update of the student."""
    teacher = load("digits")
    sdtt = recipe_file.read("sdtt/digits", {"rounds": 2, "training.iterations": 10, "training.batch": 3})
    assert forward_equivalents(sdtt, teacher) == pytest.approx(2 * 10 * 3 * (2 + 3), rel=0.03)
    own = {
        "training.iterations": 100,
        "training.batch": 2,
        "training.synthetic_pool": 50,
        "training.synthetic_steps": 4,
    }
    matching, other = recipe_file.read("moment_matching/pixels", own), load("pixels")
    assert forward_equivalents(matching, other) == pytest.approx(100 * 2 * 10 + 50 * 4, rel=0.03)


@pytest.mark.slow
@pytest.mark.parametrize("task", TASKS)
def test_contest_rows_have_equal_compute_and_information(task: str, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(compute, "COUNTED_STEPS", 2)
    rows, teacher = row_recipes(read_sweep(f"contest/{task}"), None, {}), load(task)
    counted = {row.label: forward_equivalents(recipe, teacher) for row, recipe in rows}
    assert max(counted.values()) < 1.1 * min(counted.values()), counted
    labels = {information(recipe, teacher.config.labels).endswith("labels") for _, recipe in rows}
    assert labels == {task == "fashion"}


def test_contest_rejects_labels_on_one_side(teacher: Path, tmp_path: Path) -> None:
    sweep = Sweep(name="x", summary="x", base="sdtt/digits", labels="none", rows=[SweepRow(label="sdtt")])
    rows = row_recipes(sweep, None, {"teacher": str(teacher)})
    with pytest.raises(UserError, match="sdtt learns from labels, but x samples without labels"):
        prepare_evaluation(sweep, rows, tmp_path, 0, ScorerOptions(), samples=60)


@pytest.mark.slow
def test_contest_trains_measures_and_resumes(tmp_path: Path) -> None:
    path = tmp_path / "contest.yaml"
    head = "kind: sweep\nname: small\nsummary: x\nbase: digits\nseeds: 2\nlabels: uniform\nteacher_steps: [4]\n"
    small = "{evaluation.steps: [1, 2], data: teacher, training.iterations: 2, training.batch: 2}"
    rows = "rows: [{label: sdtt, base: sdtt/digits}, {label: matching, base: moment_matching/digits}]\n"
    path.write_text(f"{head}small: {small}\nmetrics: [frechet, right_class]\n{rows}")
    few = ["--set", "training.synthetic_pool=4", "--set", "training.synthetic_steps=2"]
    command = ["sweep", str(path), "--out", str(tmp_path / "out"), "--samples", "40", *few]
    done = CliRunner().invoke(app, command, env={"COLUMNS": "300"})
    assert done.exit_code == 0, done.stderr
    for text in ("information", "forwards", "share of the right class", "Steps saved at equal quality"):
        assert text in done.stdout
    results = load_results(tmp_path / "out")
    cells = {(cell.row, cell.steps): cell for cell in results.cells}
    assert set(cells) == {
        *(("teacher", k) for k in (1, 2, 4)),
        *((row, k) for row in ("sdtt", "matching") for k in (1, 2)),
        ("matching, hand-off", 2),
    }
    assert all(len(cell.figures["right_class"].repeats) == 2 for cell in cells.values())
    assert cells["teacher", 4].figures["right_class"].value > 0.6, "a tenth would be chance"
    assert (
        cells["matching", 2].settings.get("hybrid") is None and cells["matching, hand-off", 2].settings["hybrid"] == 1
    )
    entries = {entry.row: entry for entry in results.models}
    assert entries["teacher"].forwards is None and entries["matching"].information == "teacher only"
    assert entries["sdtt"].information == "teacher only, labels" and (entries["sdtt"].forwards or 0) > 0
    assert {entry.row for entry in results.steps_saved} == {"sdtt", "matching", "matching, hand-off"}

    part = CliRunner().invoke(app, [*command, "--json", "--row", "matching", "--seeds", "1"])
    assert part.exit_code == 0 and "Drawing" not in part.stderr, "the runs of the whole contest serve"
    assert {cell["row"] for cell in json.loads(part.stdout)["cells"]} == {"teacher", "matching", "matching, hand-off"}
    assert load_results(tmp_path / "out") == results, "a part keeps the files of the whole"
    assert len(load_results(tmp_path / "out" / "s0").cells) == len(results.cells)
    assert (tmp_path / "out" / "s0" / "matching-report.html").is_file()

    again = CliRunner().invoke(app, [*command, "--json"])
    assert again.exit_code == 0 and "Drawing" not in again.stderr
    first = json.loads(results.model_dump_json())["cells"]
    assert [cell["figures"] for cell in json.loads(again.stdout)["cells"]] == [cell["figures"] for cell in first]
