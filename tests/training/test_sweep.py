"""Ablation tables: their rows are the paper's, and a small one runs, resumes and prints its shape."""

from __future__ import annotations

import json
import re
from pathlib import Path

import numpy as np
import pytest
from PIL import Image
from typer.testing import CliRunner

from di4c_cli import recipe_file
from di4c_cli.cli.app import app
from di4c_cli.errors import UserError
from di4c_cli.evaluation.config import ScorerOptions
from di4c_cli.report.table import protocol_tables
from di4c_cli.tasks.registry import TASKS
from di4c_cli.training.run import RunOptions, distill
from di4c_cli.training.run_folder import RunFolder
from di4c_cli.training.sweep import prepare_evaluation, with_students
from di4c_cli.training.sweep_recipe import Sweep, SweepRow, read_sweep, row_recipes
from tests.helpers.published_models import GOLDEN, instrument


def test_sweep_alpha_has_the_papers_rows() -> None:
    rows = row_recipes(read_sweep("ablations/alpha"), None, {})
    found = [
        (r.method.alpha.kind, r.method.control_variate, r.method.marginal_weight, r.method.latents) for _, r in rows
    ]
    assert found == [
        ("zero", "marginal", 1.0, 8),
        ("zero", "none", 0.0, 8),
        ("const", "marginal", 1.0, 8),
        ("const", "none", 0.0, 8),
        ("linear", "marginal", 1.0, 8),
        ("sigmoid", "marginal", 1.0, 8),
    ]


@pytest.mark.parametrize("base", [None, "tauldr-cifar10"])
def test_sweep_latents_keeps_the_work_of_a_step(base: str | None) -> None:
    rows = [recipe for _, recipe in row_recipes(read_sweep("ablations/latents"), base, {})]
    assert [recipe.method.latents for recipe in rows] == [2, 4, 8, 16, 32, 64]
    assert {recipe.method.latents * recipe.training.batch for recipe in rows} == {128}
    assert {(r.method.alpha.kind, r.method.alpha.scale) for r in rows} == {("sigmoid", 1.0)}


def test_row_recipes_without_data() -> None:
    rows = row_recipes(read_sweep("ablations/alpha"), None, {"data": "teacher"})
    assert {recipe.data for _, recipe in rows} == {"teacher"}


def test_read_sweep_rejects_mistakes(tmp_path: Path) -> None:
    with pytest.raises(UserError, match=r"distill recipe, not a sweep.*ablations/alpha"):
        read_sweep("digits")
    path = tmp_path / "mine.yaml"
    head = "kind: sweep\nname: x\nsummary: x\nbase: digits\n"
    path.write_text(head + "rows: [{label: a, set: {seeed: 1}}]\n")
    with pytest.raises(UserError, match="Did you mean 'seed'"):
        row_recipes(read_sweep(str(path)), None, {})
    path.write_text(path.read_text().replace("rows: [", "rows: [{label: A, set: {}}, "))
    with pytest.raises(UserError, match="same label"):
        read_sweep(str(path))
    with pytest.raises(UserError, match=r"no row 'sdt'\. Did you mean 'sdtt'"):
        read_sweep("contest/words", ["sdt"])


def test_read_sweep_of_chosen_rows_and_seeds() -> None:
    chosen = read_sweep("contest/words", ["sdtt", "di4c"], 2)
    assert [row.label for row in chosen.rows] == ["di4c", "sdtt"] and chosen.seeds == 2
    assert len(read_sweep("contest/words").rows) > 2 and read_sweep("contest/words").seeds == 3


@pytest.mark.parametrize(("name", "label"), [("ablations/alpha", "alpha-ab"), ("ablations/latents", "lam-ab")])
def test_sweep_on_the_papers_base_is_the_papers_table(name: str, label: str) -> None:
    """Budget, steps and samples are the base's own; the small ones belong to the embedded digits."""
    sweep = read_sweep(name)
    rows = row_recipes(sweep, "tauldr-cifar10", {})
    assert {recipe.training.iterations for _, recipe in rows} == {320_000}
    assert {(*recipe.evaluation.steps, recipe.evaluation.samples) for _, recipe in rows} == {(10, 20, 40, 50_000)}
    assert {recipe.training.iterations for _, recipe in row_recipes(sweep, None, {})} == {700}
    published = [[sweep.published(recipe, row, k) for k in (10, 20, 40)] for row, recipe in [(None, rows[0][1]), *rows]]
    found = [[value for cell in row for value in cell.values()] for row in published]
    assert found == PAPER[label]
    others = rows[0][1].model_copy(update={"name": "authors/tauldr-cifar10"})
    assert sweep.published(others, rows[0][0], 10) == published[1][0]
    small = row_recipes(sweep, None, {})[0]
    assert sweep.published(small[1], small[0], 10) == {}, "the paper's figures are of its own base"


TEACHER_FIGURES = [32.61, 7.59, 12.36, 8.55, 8.01, 8.77]
PAPER = {
    "alpha-ab": [
        TEACHER_FIGURES,
        [26.23, 8.02, 11.55, 8.59, 9.01, 8.65],
        [44.09, 6.79, 26.16, 7.54, 22.20, 7.72],
        [24.14, 7.54, 12.30, 8.06, 10.32, 8.14],
        [26.92, 8.12, 13.77, 8.57, 10.59, 8.66],
        [24.21, 8.10, 10.85, 8.55, 9.27, 8.51],
        [22.77, 8.19, 10.07, 8.54, 9.01, 8.42],
    ],
    "lam-ab": [
        TEACHER_FIGURES,
        [27.29, 8.00, 11.42, 8.67, 8.94, 8.64],
        [24.94, 8.05, 10.66, 8.60, 8.90, 8.59],
        [22.77, 8.19, 10.07, 8.54, 9.01, 8.42],
        [20.64, 8.29, 9.77, 8.52, 9.66, 8.28],
        [20.25, 8.28, 9.93, 8.44, 9.91, 8.26],
        [19.26, 8.13, 10.13, 8.26, 10.59, 8.02],
    ],
}
"""The paper's tables: FID and IS at 10, 20 and 40 steps, line by line."""
TEACHER_CHECKPOINT = GOLDEN / "tauldr" / "teacher"


@pytest.fixture
def papers_command(tmp_path: Path) -> list[object]:
    """The paper's table on a small pixel teacher, with images, a feature network and a reference."""
    images = np.random.default_rng(0).integers(0, 256, size=(30, 8, 8, 3)).astype(np.uint8)
    (tmp_path / "images").mkdir()
    for number, image in enumerate(images):
        Image.fromarray(image).save(tmp_path / "images" / f"{number}.png")
    flags = ["--base", "tauldr-cifar10", "--teacher", TEACHER_CHECKPOINT, "--data", tmp_path / "images"]
    return ["sweep", "ablations/alpha", *flags, *instrument(tmp_path / "instrument", 8), "--out", tmp_path / "out"]


@pytest.mark.slow
def test_sweep_trains_measures_and_prints_the_papers_table(papers_command: list[object], tmp_path: Path) -> None:
    quick = ["--iterations", 2, "--samples", 16, "--set", "training.batch=2", "--set", "method.latents=2"]
    done = CliRunner().invoke(app, [str(word) for word in [*papers_command, *quick]], env={"COLUMNS": "300"})
    assert done.exit_code == 0, done.stderr
    lines = [re.split(r"\s*│\s*", line.strip("│ ")) for line in done.stdout.splitlines() if line.startswith("│")]
    assert [line[0] for line in lines] == ["teacher", *(row.label for row in read_sweep("ablations/alpha").rows)]
    for line, expected in zip(lines, PAPER["alpha-ab"], strict=True):
        assert all(re.match(r"\d\S* / \d\S* \[", cell) for cell in line[1:]), line
        brackets = [float(text) for cell in line[1:] for text in cell.partition("[")[2].rstrip("]").split(" / ")]
        assert brackets == expected
    assert "10 steps" in done.stdout and "20 steps" in done.stdout and "40 steps" in done.stdout
    assert "16 samples in each cell instead of the protocol's 50000." in done.stdout
    assert {"results.json", "quality.png", "report.html"} <= {path.name for path in (tmp_path / "out").iterdir()}


@pytest.mark.slow
def test_sweep_dry_run_says_the_papers_iterations(papers_command: list[object], tmp_path: Path) -> None:
    quick = ["--samples", 20, "--set", "training.batch=2", "--set", "method.latents=2", "--dry-run"]
    command = [str(word) for word in [*papers_command, *quick]]
    done = CliRunner().invoke(app, command)
    assert done.exit_code == 0, done.stderr
    assert done.stdout.count(" 320000 ") == 6
    assert "20 samples in each cell: 10 steps, 20 steps, 40 steps" in done.stdout
    assert not (tmp_path / "out").exists()


@pytest.mark.parametrize(
    ("change", "message"),
    [
        ({"--features": None}, "feature network"),
        ({"--reference": None}, "need real images"),
        ({"--reference": "nothing.npy"}, "no reference nothing.npy"),
        ({"--reference": "large.npy"}, "'large.npy' are 16×16, the samples 8×8"),
        ({"--samples": "31"}, "30 images, fewer than the 31 samples"),
        ({"--feature-input": "words"}, "bytes, tf299"),
    ],
)
def test_sweep_rejects_what_cannot_be_measured_before_the_training(
    change: dict[str, str | None], message: str, papers_command: list[object], tmp_path: Path
) -> None:
    np.save("large.npy", np.zeros((30, 16, 16, 3), np.uint8))
    words = [str(word) for word in papers_command]
    flags = dict(zip(words[2::2], words[3::2])) | {"--samples": "20"} | change
    kept = [word for flag, value in flags.items() if value is not None for word in (flag, value)]
    done = CliRunner().invoke(app, [*words[:2], *kept])
    assert done.exit_code == 2 and message in done.stderr
    assert not list((tmp_path / "out").rglob("recipe.yaml"))


def test_sweep_dry_run_says_what_is_missing(papers_command: list[object]) -> None:
    """One row, as JSON."""
    words = [str(word) for word in papers_command]
    path = Path("one.yaml")
    path.write_text("kind: sweep\nname: one\nsummary: x\nbase: digits\nrows: [{label: a, set: {}}]\n")
    flags = dict(zip(words[2::2], words[3::2])) | {"--features": "nothing.pt"}
    quick = ["--set", "training.batch=2", "--set", "method.latents=2", "--dry-run", "--json"]
    done = CliRunner().invoke(app, ["sweep", str(path), *(word for pair in flags.items() for word in pair), *quick])
    assert done.exit_code == 2 and "no feature network nothing.pt" in done.stderr
    found = json.loads(done.stdout)
    assert len(found["rows"]) == 1 and found["measured"].startswith("not reached")


def test_sweep_rejects_a_used_folder_before_the_first_row(tmp_path: Path, teacher: Path) -> None:
    """The folder of the second row holds a run of another recipe."""
    sweep = read_sweep("ablations/alpha")
    first, second = row_recipes(sweep, None, {"teacher": str(teacher)})[:2]
    RunFolder(tmp_path / second[0].folder).start(first[1])
    with pytest.raises(UserError, match="run of another recipe"):
        prepare_evaluation(sweep, [first, second], tmp_path, 0, ScorerOptions())


@pytest.mark.slow
def test_sweep_of_a_toy_task_needs_no_instrument(teacher: Path, tmp_path: Path) -> None:
    sweep = Sweep(
        name="small",
        summary="two rows",
        base="di4c/digits",
        small={"evaluation.steps": [1, 2], "training.iterations": 2, "training.batch": 2},
        rows=[SweepRow(label="L = 2", set={"method.latents": 2}), SweepRow(label="L = 4", set={})],
    )
    rows = row_recipes(sweep, None, {"teacher": str(teacher)})
    evaluation = prepare_evaluation(sweep, rows, tmp_path, 0, ScorerOptions(), samples=60)
    for row, recipe in rows:
        distill(recipe, tmp_path / row.folder, RunOptions())
    results = with_students(evaluation, rows).run()
    (table,) = protocol_tables(results, evaluation.protocol)
    assert "Fréchet distance" in table.title and "inception score" in table.title
    assert table.header == ["", "1 step", "2 steps"]
    assert [line[0] for line in table.rows] == ["teacher", "L = 2", "L = 4"]
    assert all(" / " in cell and "–" not in cell for line in table.rows for cell in line[1:])
    assert {cell.labels for cell in results.cells} == {"unconditional"}


def test_prepare_evaluation_uses_the_training_device(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    def load(ref: str, device: str, **options: object) -> None:
        raise UserError(f"{ref} on {device}")

    monkeypatch.setattr("di4c_cli.training.sweep.load", load)
    sweep = read_sweep("ablations/alpha")
    with pytest.raises(UserError, match="digits on cuda:1"):
        prepare_evaluation(sweep, row_recipes(sweep, None, {}), tmp_path, 0, ScorerOptions(device="cuda:1"))


def test_sweep_rejects_too_few_samples_before_the_training() -> None:
    done = CliRunner().invoke(app, ["sweep", "ablations/alpha", "--samples", "-1"])
    assert done.exit_code == 2 and "--samples" in done.stderr


def test_recipes_list_the_shipped_sweeps() -> None:
    kinds = {name: recipe_file.kind_of(name) for name in recipe_file.names()}
    contests = {f"contest/{task}" for task in TASKS}
    assert {name for name, kind in kinds.items() if kind == "sweep"} == {
        "ablations/alpha",
        "ablations/latents",
        *contests,
    }
