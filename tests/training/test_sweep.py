"""Ablation tables: their rows are the paper's, and a small one runs, resumes and prints its shape."""

from __future__ import annotations

from pathlib import Path

import pytest
from typer.testing import CliRunner

from di4c_cli import recipe_file
from di4c_cli.cli.app import app
from di4c_cli.errors import UserError
from di4c_cli.report.table import protocol_tables
from di4c_cli.training.run import RunOptions, distill
from di4c_cli.training.sweep import measure_rows, sweep_protocol
from di4c_cli.training.sweep_recipe import Sweep, SweepRow, read_sweep, row_recipes


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
        read_sweep("tiny-digits")
    path = tmp_path / "mine.yaml"
    head = "kind: sweep\nname: x\nsummary: x\nbase: tiny-digits\nsteps: [1]\n"
    path.write_text(head + "rows: [{label: a, set: {seeed: 1}}]\n")
    with pytest.raises(UserError, match="Did you mean 'seed'"):
        row_recipes(read_sweep(str(path)), None, {})
    path.write_text(path.read_text().replace("rows: [", "rows: [{label: A, set: {}}, "))
    with pytest.raises(UserError, match="same label"):
        read_sweep(str(path))


@pytest.mark.slow
def test_sweep_trains_and_measures_every_row(teacher: Path, tmp_path: Path) -> None:
    sweep = Sweep(
        name="small",
        summary="two rows",
        base="di4c/tiny-digits",
        steps=[1, 2],
        rows=[SweepRow(label="L = 2", set={"method.latents": 2}), SweepRow(label="L = 4", set={})],
    )
    overrides = {"teacher": str(teacher), "training.iterations": 2, "training.batch": 2}
    rows = row_recipes(sweep, None, overrides)
    for row, recipe in rows:
        distill(recipe, tmp_path / row.folder, RunOptions())
    assert sorted(path.name for path in tmp_path.iterdir()) == ["l-2", "l-4"]
    protocol = sweep_protocol(sweep, samples=60)
    results = measure_rows(protocol, rows, tmp_path, seed=0)
    (table,) = protocol_tables(results, protocol)
    assert "Fréchet distance" in table.title and "inception score" in table.title
    assert table.header == ["", "1 step", "2 steps"]
    assert [line[0] for line in table.rows] == ["teacher", "L = 2", "L = 4"]
    assert all(" / " in cell and "–" not in cell for line in table.rows for cell in line[1:])


def test_measure_rows_uses_the_training_device(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    def load(ref: str, device: str, **options: object) -> None:
        raise UserError(f"{ref} on {device}")

    monkeypatch.setattr("di4c_cli.training.sweep.load", load)
    sweep = read_sweep("ablations/alpha")
    with pytest.raises(UserError, match="tiny-digits on cuda:1"):
        measure_rows(sweep_protocol(sweep, 10), row_recipes(sweep, None, {}), tmp_path, 0, "cuda:1")


def test_sweep_rejects_too_few_samples_before_the_training() -> None:
    done = CliRunner().invoke(app, ["sweep", "ablations/alpha", "--samples", "-1"])
    assert done.exit_code == 2 and "--samples" in done.stderr


def test_recipes_list_the_shipped_sweeps() -> None:
    kinds = {name: recipe_file.kind_of(name) for name in recipe_file.names()}
    assert {name for name, kind in kinds.items() if kind == "sweep"} == {"ablations/alpha", "ablations/latents"}
