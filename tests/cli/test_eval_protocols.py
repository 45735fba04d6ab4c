"""Every protocol of the paper through the real command, on small models in the paper's formats."""

from __future__ import annotations

import json
from pathlib import Path

import pytest
from typer.testing import CliRunner

from di4c_cli.cli.app import app
from di4c_cli.evaluation.protocols import get_protocol
from tests.helpers.published_models import instrument, many_classes, maskgit, tauldr, text_rows
from tests.helpers.small_models import judge_folder, save_pair, text_pair

__all__ = ["judge_folder", "text_pair"]


def run(name: str, *words: object) -> tuple[str, list[dict[str, object]]]:
    """The printed tables and the cells of results.json."""
    done = CliRunner().invoke(
        app, ["eval", "--protocol", name, "--out", "out", *map(str, words)], env={"COLUMNS": "300"}
    )
    assert done.exit_code == 0, done.output
    assert (Path("out") / "report.html").is_file()
    results = json.loads((Path("out") / "results.json").read_text())
    assert results["protocol"] == name
    return done.stdout, results["cells"]


def table(text: str) -> list[list[str]]:
    """Rows of all printed tables, the header included, as cells."""
    bars = str.maketrans("┃", "│")
    rows = [line.translate(bars) for line in text.splitlines() if line[:1] in "┃│"]
    return [[cell.strip() for cell in row.strip("│").split("│")] for row in rows]


def check_complete(name: str, cells: list[dict[str, object]]) -> None:
    assert [(cell["row"], cell["column"]) for cell in cells] == [(c.row, c.column) for c in get_protocol(name).cells]


@pytest.mark.slow
def test_cifar10_table1(tmp_path: Path) -> None:
    printed, cells = run("cifar10-table1", *tauldr(), *instrument(tmp_path, 8), "--limit", 2)
    check_complete("cifar10-table1", cells)
    header, *rows = table(printed)
    assert header == ["", "10 steps", "20 steps", "40 steps"]
    assert [row[0] for row in rows] == ["teacher", "student", "hybrid"]
    assert "Fréchet distance ↓ / inception score ↑" in printed
    assert rows[0][1].endswith("[32.61 / 7.59]") and rows[2][3].endswith("[8.02 / 8.43]")
    assert cells[-1]["settings"]["hybrid"] == 20  # type: ignore[index]


@pytest.mark.slow
def test_cifar10_steps(tmp_path: Path) -> None:
    teacher, student = save_pair(tmp_path / "pair", "pixels")
    printed, cells = run("cifar10-steps", "--teacher", teacher, "--student", student, "--limit", 2)
    check_complete("cifar10-steps", cells)
    rows = table(printed)
    assert rows[0] == ["", *(f"{k} steps" for k in range(2, 21, 2))] and rows[3] == rows[0]
    assert rows[1][1].endswith("[392.24]") and rows[5][10].endswith("[8.39]"), "FID, then IS"


@pytest.mark.slow
def test_cifar10_tau(tmp_path: Path) -> None:
    """A thousand steps of a pixel model of a few weights."""
    teacher, _ = save_pair(tmp_path / "pair", "pixels")
    printed, cells = run("cifar10-tau", "--teacher", teacher, "--limit", 2)
    check_complete("cifar10-tau", cells)
    assert [cell["settings"]["sampler"] for cell in cells] == ["tau-leaping"] * 2 + ["analytical"] * 3  # type: ignore[index]
    header, leaps, straight = table(printed)
    assert header == ["", "10 steps", "20 steps", "40 steps", "1000 steps"]
    assert leaps[:3] == ["teacher, τ-leaping", "–", "–"] and leaps[4].endswith("[8.1 / 8.74]")
    assert straight[1].endswith("[32.61 / 7.59]") and straight[4] == "–"
    assert "entropies" not in printed


@pytest.mark.slow
def test_cifar10_pc(tmp_path: Path) -> None:
    printed, cells = run("cifar10-pc", *tauldr(), *instrument(tmp_path, 8), "--limit", 2)
    check_complete("cifar10-pc", cells)
    header, teacher, student = table(printed)
    assert header == ["", "6+7+7", "10+5+5", "14+3+3", "20+0+0"]
    assert teacher[1].endswith("[57.57]") and student[4].endswith("[11.81]")
    chosen = [cell["settings"].get("corrector_step") for cell in cells]  # type: ignore[attr-defined]
    assert set(chosen[:3]) <= {1e-3, 1e-4, 1e-5} and chosen[3] is None


@pytest.mark.slow
def test_imagenet_fid_is(tmp_path: Path) -> None:
    printed, cells = run("imagenet-fid-is", *maskgit(tmp_path), *instrument(tmp_path, 16), "--limit", 7)
    check_complete("imagenet-fid-is", cells)
    weights = [cell["settings"]["guidance"] for cell in cells]  # type: ignore[index]
    assert weights == [float(w) for w in range(5, 13)] * 3 + [2.0, 2.5, 3.0, 3.5, 4.0]
    header, *rows = table(printed)
    assert header == ["model", "sampling", "Fréchet distance ↓", "inception score ↑"] and len(rows) == 29
    assert "best of di4c-d" in printed and "without numbers (fig:maskgit)" in printed
    assert (Path("out") / "quality.png").is_file()


@pytest.mark.slow
def test_imagenet_best(tmp_path: Path) -> None:
    printed, cells = run("imagenet-best", *maskgit(tmp_path), *instrument(tmp_path, 16), "--limit", 7)
    check_complete("imagenet-best", cells)
    assert cells[0]["labels"] == "every class equally often"
    header, *rows = table(printed)
    assert header[2:] == ["Fréchet distance ↓", "inception score ↑", "precision ↑", "recall ↑"]
    assert [row[:2] for row in rows][3] == ["di4c-d", "4 steps, w 7"]
    assert [cell[cell.index("[") :] for cell in rows[3][2:]] == ["[6.57]", "[213.6]", "[0.7866]", "[0.5391]"]


def test_imagenet_samples(tmp_path: Path) -> None:
    _, cells = run("imagenet-samples", *many_classes(tmp_path), "--limit", 2)
    check_complete("imagenet-samples", cells)
    assert [cell["labels"] for cell in cells[::4]] == ["class 9", "class 933", "class 980"]
    assert all((Path("out") / str(cell["picture"])).is_file() for cell in cells)


@pytest.mark.slow
def test_owt_uncond(text_pair: tuple[Path, Path], judge_folder: Path) -> None:
    printed, cells = run("owt-uncond", *text_rows(text_pair), "--judge", judge_folder, "--limit", 2)
    check_complete("owt-uncond", cells)
    rows = table(printed)
    assert rows[0] == ["", *(f"{k} steps" for k in (8, 16, 32, 64, 128))] and len(rows) == 3 * 6
    assert "generative perplexity (strict)" in printed and "unigram entropy" in printed


@pytest.mark.slow
def test_owt_cond(text_pair: tuple[Path, Path], judge_folder: Path) -> None:
    Path("prompts.txt").write_text("It is a truth universally acknowledged, that a single man\n" * 2)
    flags = ["--judge", judge_folder, "--prompts", "prompts.txt", "--limit", 12]
    printed, cells = run("owt-cond", *text_rows(text_pair), *flags)
    check_complete("owt-cond", cells)
    assert cells[0]["n"] == 10, "whole prompts"
    assert {"perplexity", "entropy", "self_bleu"} == set(cells[0]["figures"])  # type: ignore[call-overload]
    assert len(table(printed)) == 3 * 6 and "Self-BLEU (0-100) ↓" in printed


@pytest.mark.slow
def test_owt_mauve(text_pair: tuple[Path, Path], judge_folder: Path) -> None:
    Path("real.txt").write_text("\n".join(f"some real text number {i}" for i in range(20)))
    flags = ["--judge", judge_folder, "--reference", "real.txt", "--limit", 6]
    printed, cells = run("owt-mauve", *text_rows(text_pair), *flags)
    check_complete("owt-mauve", cells)
    assert len(table(printed)) == 6 and "MAUVE ↑" in printed


@pytest.mark.slow
def test_owt_samples(text_pair: tuple[Path, Path]) -> None:
    printed, cells = run("owt-samples", "--teacher", text_pair[0], "--student", text_pair[1])
    check_complete("owt-samples", cells)
    assert [cell["steps"] for cell in cells[::2]] == [4, 16, 64, 256]
    assert printed.count("Diffusion mo") == 8
