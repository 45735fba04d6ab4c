"""Every protocol through the real command, on small models in the paper's formats.

The printed table (lines, columns, the paper's figures) and the plot (axes, scale, series, order of points) are compared
with `tests/evaluation/paper_tables.yaml`, a transcription of the paper.
"""

from __future__ import annotations

import re
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import yaml
from typer.testing import CliRunner

from di4c_cli.cli.app import app
from di4c_cli.evaluation.protocols import PROTOCOLS
from di4c_cli.evaluation.results import Results, load
from di4c_cli.report.charts import PNG_SIZE, as_png, draw, main_chart
from di4c_cli.tasks.config import TASK_NAMES
from tests.helpers.published_models import family_rows, instrument, many_classes, maskgit, tauldr
from tests.helpers.small_models import judge_folder, save_pair, text_pair

__all__ = ["judge_folder", "text_pair"]
PAPER: dict[str, dict[str, Any]] = yaml.safe_load(
    (Path(__file__).parents[1] / "evaluation" / "paper_tables.yaml").read_text(encoding="utf-8")
)
OURS = {
    "FID": "Fréchet distance ↓",
    "IS": "inception score ↑",
    "Precision": "precision ↑",
    "Recall": "recall ↑",
    "Gen. PPL": "generative perplexity ↓",
    "Self-BLEU": "Self-BLEU (0-100) ↓",
    "MAUVE": "MAUVE ↑",
    "steps": "sampling steps",
}
"""The paper's words and ours."""
NOT_IN_THE_PAPER = ("words-frontier",)
Printed = list[tuple[str, list[list[str]]]]
"""Title and rows of every printed table, the header first."""


def pixel_pair(root: Path) -> list[object]:
    """Flags of a pixel pair of a few weights."""
    teacher, student = save_pair(root / "pair", "pixels")
    return ["--teacher", teacher, "--student", student]


def run(label: str, *words: object) -> tuple[Printed, Results, str]:
    """The printed tables, results.json and everything on stdout of a label's protocol."""
    name = PAPER[label]["protocol"] if label in PAPER else label
    done = CliRunner().invoke(
        app, ["eval", "--protocol", name, "--out", "out", *map(str, words)], env={"COLUMNS": "400"}
    )
    assert done.exit_code == 0, done.output
    assert (Path("out") / "report.html").is_file()
    results = load(Path("out"))
    assert results.protocol == name
    return tables(done.stdout), results, done.stdout


def tables(text: str) -> Printed:
    """The tables of the terminal."""
    found: Printed = []
    title: list[str] = []  # a title wider than its table is broken into lines
    for line in text.splitlines():
        if line.startswith("┏"):
            found.append((" ".join(title), []))
            title = []
        elif line[:1] in ("┃", "│"):
            cells = line.replace("┃", "│").strip("│").split("│")
            found[-1][1].append([cell.strip() for cell in cells])
        elif line[:1] not in ("┡", "└"):
            title.append(line.strip())
    return found


def figures(cell: str) -> list[float] | None:
    """The paper's figures in the brackets of a printed cell; None for a dash."""
    found = re.search(r"\[(.*)\]$", cell)
    return [float(number) for number in found[1].split(" / ")] if found else None


def published(entry: object) -> list[float] | None:
    """The figures of a cell of the transcription."""
    return None if entry in (None, "-") else [float(number) for number in str(entry).split(" / ")]


def check_label(label: str, printed: Printed, results: Results) -> None:
    """The printed tables and the plot are those of the paper's label."""
    paper = PAPER[label]
    assert PROTOCOLS[paper["protocol"]].n == paper["samples"]
    check_lines(paper, printed) if "lines" in paper else check_grids(paper, printed)
    check_plot(paper["axes"], results)


def check_grids(paper: dict[str, Any], printed: Printed) -> None:
    """Models down, ways of sampling across: one table for each group of figures, in the paper's order."""
    assert len(printed) >= len(paper["tables"])
    for place, (metrics, (title, (header, *rows))) in enumerate(zip(paper["tables"], printed)):
        assert title.startswith(" / ".join(OURS[metric] for metric in metrics) + ":")
        assert header == ["", *paper["columns"]]
        assert [row[0] for row in rows] == list(paper["rows"])
        for line, values in zip(rows, paper["rows"].values(), strict=True):
            own = values[place] if len(paper["tables"]) > 1 else values or [None] * len(header[1:])
            assert [figures(cell) for cell in line[1:]] == [published(value) for value in own], line[0]
            for cell, value in zip(line[1:], own, strict=True):
                assert (cell == "–") == (value == "-"), "a cell without a figure has no samples either"


def check_lines(paper: dict[str, Any], printed: Printed) -> None:
    """One line for each cell, the figures across."""
    ((_, (header, *rows)),) = printed
    assert header == ["model", "sampling", *(OURS[metric] for metric in paper["lines"])]
    assert [row[:2] for row in rows] == [entry[:2] for entry in paper["rows"]]
    for line, entry in zip(rows, paper["rows"], strict=True):
        expected = [published(value) for value in entry[2:]] or [None] * len(paper["lines"])
        assert [figures(cell) for cell in line[2:]] == expected


def check_plot(paper: dict[str, Any], results: Results) -> None:
    """quality.png has the paper's axes, its series in order, and the points of each in order."""
    chart = main_chart(results)
    heading = f"{results.title}, n = {results.cells[0].n}"
    assert (Path("out") / "quality.png").read_bytes() == as_png(chart, heading)
    (axes,) = draw(chart, PNG_SIZE, heading).axes
    assert (axes.get_xlabel(), axes.get_ylabel()) == (OURS[paper["x"]], OURS[paper["y"]])
    assert axes.get_xscale() == ("log" if paper["x"] == "steps" else "linear")
    if not any(cell.paper for cell in results.cells):
        assert axes.get_yscale() == "linear", (
            "the figures of stand-ins are far from the paper's, which are drawn beside"
        )
    own = {text.get_text(): line for text, line in zip(axes.get_legend().get_texts(), axes.containers, strict=True)}
    series = {name: line[0].get_xydata().tolist() for name, line in own.items() if not name.endswith("(paper)")}
    assert list(series) == list(paper["series"])
    arrows = sum(text.arrow_patch is not None for text in axes.texts)
    if paper["x"] == "steps":
        assert {name: [x for x, _ in points] for name, points in series.items()} == paper["series"] and arrows == 0
        return
    for name, values in paper["series"].items():
        row, _, steps = name.removesuffix(" steps").partition(", ")
        cells = [cell for cell in results.cells if cell.row == row and steps in ("", str(cell.steps))]
        at = {cell.steps if paper["along"] == "steps" else cell.settings["guidance"]: cell.figures for cell in cells}
        points = [(at[value]["is" if paper["x"] == "IS" else "self_bleu"].value, at[value][main].value)
                  for value in values for main in [results.main_figure]]  # fmt: skip
        assert series[name] == [list(point) for point in points]
    assert arrows == sum(len(values) - 1 for values in paper["series"].values()), "each point leads to the next"


def test_every_protocol_of_the_paper_is_transcribed() -> None:
    named = {entry["protocol"] for entry in PAPER.values()}
    assert {*named, *NOT_IN_THE_PAPER} == PROTOCOLS.keys() - set(TASK_NAMES)


@pytest.mark.slow
def test_cifar10_table1(tmp_path: Path) -> None:
    printed, results, _ = run("tab:tldr", *tauldr(), *instrument(tmp_path, 8), "--limit", 2)
    check_label("tab:tldr", printed, results)
    halves = [cell.settings["hybrid"] for cell in results.cells if cell.row == "hybrid"]
    assert halves == [5, 10, 20], "the teacher makes the second half"


@pytest.mark.slow
def test_cifar10_steps(tmp_path: Path) -> None:
    printed, results, _ = run("tab:more-tldr", *pixel_pair(tmp_path), "--limit", 2)
    check_label("tab:more-tldr", printed, results)


@pytest.mark.slow
def test_cifar10_tau(tmp_path: Path) -> None:
    """A thousand steps of a pixel model of a few weights."""
    printed, results, text = run("tab:experiment", *pixel_pair(tmp_path), "--limit", 2)
    check_label("tab:experiment", printed, results)
    samplers = [cell.settings["sampler"] for cell in results.cells]
    assert samplers == ["tau-leaping"] * 2 + ["analytical"] * 9
    assert "student at k steps / teacher at k: " in text and "k=1000" not in text


@pytest.mark.slow
def test_cifar10_pc(tmp_path: Path) -> None:
    printed, results, _ = run("tab:pc", *tauldr(), *instrument(tmp_path, 8), "--limit", 2)
    check_label("tab:pc", printed, results)
    chosen = [cell.settings.get("corrector_step") for cell in results.cells]
    assert set(chosen[:3]) <= {1e-3, 1e-4, 1e-5} and chosen[3] is None


@pytest.mark.slow
def test_imagenet_fid_is(tmp_path: Path) -> None:
    printed, results, text = run("fig:maskgit", *maskgit(tmp_path), *instrument(tmp_path, 16), "--limit", 7)
    check_label("fig:maskgit", printed, results)
    assert "best of di4c-d" in text and "without numbers (fig:maskgit)" in text


@pytest.mark.slow
def test_imagenet_best(tmp_path: Path) -> None:
    printed, results, _ = run("tab:cfg-choice", *maskgit(tmp_path), *instrument(tmp_path, 16), "--limit", 7)
    check_label("tab:cfg-choice", printed, results)
    assert results.cells[0].labels == "every class equally often"


@pytest.mark.parametrize(
    ("label", "models"), [("fig:tldr-samples", lambda root: tauldr()), ("fig:maskgit-samples", many_classes)]
)
def test_pictures(label: str, models: Callable[[Path], list[object]], tmp_path: Path) -> None:
    _, results, _ = run(label, *models(tmp_path), "--limit", 1)
    assert [list(cell.key) for cell in results.cells] == PAPER[label]["pictures"]
    assert all((Path("out") / cell.picture).is_file() and not cell.figures for cell in results.cells)
    named = [re.match(r"label (\d+)", cell.column) for cell in results.cells]
    assert all(one is None or cell.labels == f"class {one[1]}" for cell, one in zip(results.cells, named))


@pytest.mark.slow
def test_owt_uncond(text_pair: tuple[Path, Path], judge_folder: Path) -> None:
    """Both families of teachers in one plot from one command, drawn as published."""
    flags = ["--judge", judge_folder, "--sample-dtype", "float32", "--limit", 2]
    for label in ("fig:uncond-ppl", "fig:language-app-c"):
        printed, results, text = run(label, *family_rows(text_pair, PAPER[label]["rows"]), *flags)
        check_label(label, printed, results)
        assert {cell.settings["dtype"] for cell in results.cells} == {"float32"}
        assert results.main_figure == "perplexity" and "32-bit draws are those of the published code" in text
        assert [title.split(":")[0] for title, _ in printed[1:]] == [
            "generative perplexity (strict) ↓",
            "unigram entropy (nats) ↑",
        ]


@pytest.mark.slow
def test_owt_cond(text_pair: tuple[Path, Path], judge_folder: Path) -> None:
    texts = ["It is a truth universally acknowledged, that a single man", "Call me Ishmael. Some years ago, never mind"]
    Path("prompts.txt").write_text("\n".join(texts))
    flags = ["--judge", judge_folder, "--prompts", "prompts.txt", "--limit", 12]
    for label in ("fig:ppl-sbleu", "fig:language-app-d"):
        printed, results, _ = run(label, *family_rows(text_pair, PAPER[label]["rows"]), *flags)
        check_label(label, printed, results)
        assert results.cells[0].n == 10, "whole prompts"
        assert {"perplexity", "entropy", "self_bleu"} == set(results.cells[0].figures)


@pytest.mark.slow
def test_owt_mauve(text_pair: tuple[Path, Path], judge_folder: Path) -> None:
    Path("real.txt").write_text("\n".join(f"some real text number {i}" for i in range(20)))
    flags = ["--judge", judge_folder, "--reference", "real.txt", "--limit", 6]
    for label in ("fig:mauve-c", "fig:mauve-d"):
        printed, results, _ = run(label, *family_rows(text_pair, PAPER[label]["rows"]), *flags)
        check_label(label, printed, results)


@pytest.mark.slow
def test_owt_samples(text_pair: tuple[Path, Path]) -> None:
    label = "sec:generated-text"
    _, results, text = run(label, "--teacher", text_pair[0], "--student", text_pair[1])
    assert [list(cell.key) for cell in results.cells] == PAPER[label]["texts"]
    prompts = PROTOCOLS["owt-samples"].prompts
    assert prompts is not None and (prompts.text, prompts.given, prompts.length) == (PAPER[label]["prompt"], 50, 100)
    assert text.count("Diffusion mo") == 8


@pytest.mark.slow
def test_tiny_text_frontier() -> None:
    """Not of the paper: the embedded pair, a line for each model and step count along temperatures."""
    _, results, text = run("words-frontier", "--limit", 2)
    (axes,) = draw(main_chart(results), PNG_SIZE, "t").axes
    assert (axes.get_xlabel(), axes.get_ylabel()) == ("unigram entropy (nats) ↑", "bits per character (bits) ↓")
    names = [text.get_text() for text in axes.get_legend().get_texts()]
    assert names == [f"{row}, {steps} steps" for row in ("teacher", "student") for steps in (2, 4, 8)]
    assert "T 0.6" in text
