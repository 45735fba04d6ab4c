"""Printed tables: the paper's shapes, its figures where we ran nothing, other instruments' headlines."""

from __future__ import annotations

import numpy as np
import pytest

from di4c_cli.evaluation.protocol import CellSpec, EvaluationProtocol
from di4c_cli.evaluation.results import Cell, Figure, Results
from di4c_cli.evaluation.scorers import figure_of
from di4c_cli.metric.interval import Interval, of_halves, of_mean, of_repeats, of_splits, of_subsets
from di4c_cli.report.summary import equal_entropy, is_frontier, sentences
from di4c_cli.report.table import interval_caption, protocol_tables


def _results(*cells: Cell) -> Results:
    facts = {"protocol": "p", "title": "t", "created": "now", "seconds": 1, "device": "cpu", "threads": 1}
    return Results(**facts, packages={}, models=[], instruments=[], cells=list(cells))  # type: ignore[arg-type]


def _cell(row: str, column: str, steps: int, settings: dict[str, object], **values: float) -> Cell:
    figures = {name: Figure(value=value) for name, value in values.items()}
    return Cell(row=row, column=column, steps=steps, n=9, seed=0, seconds=1, settings=settings, figures=figures)


PROTOCOL = EvaluationProtocol(
    "p",
    "t",
    (
        CellSpec("teacher", "8 steps", 8, paper={"frechet": 392.24, "is": 1.5}),
        CellSpec("student", "4 steps", 4, paper={"frechet": 7.0, "is": 2.5}),
        CellSpec("other", "4 steps", 4),
    ),
    100,
    ("frechet", "is"),
)


def test_protocol_tables_show_the_papers_figures_in_rows_without_a_model() -> None:
    results = _results(_cell("teacher", "8 steps", 8, {}, frechet=3.0))
    fid, score = protocol_tables(results, PROTOCOL)
    assert fid.header == ["", "4 steps", "8 steps"], "by steps, not by the order of cells"
    assert fid.rows == [["teacher", "–", "3 [392.24]"], ["student", "– [7]", "–"]]
    assert score.title == "inception score" and score.rows[0] == ["teacher", "–", "– [1.5]"]


def test_protocol_tables_begin_with_the_main_figure_of_another_scorer() -> None:
    protocol = EvaluationProtocol("p", "t", (CellSpec("teacher", "8 steps", 8),), 9, ("perplexity", "entropy"))
    cell = _cell("teacher", "8 steps", 8, {}, bits_per_char=2.0, entropy=1.0)
    assert [table.title for table in protocol_tables(_results(cell), protocol)] == [
        "bits per character ↓",
        "unigram entropy ↓",
    ]


def test_sentences_ignore_two_samplers_and_correctors() -> None:
    tau = [_cell("teacher", name, 40, {"sampler": name}, frechet=1.0) for name in ("tau", "analytical")]
    assert not is_frontier(_results(*tau)) and sentences(_results(*tau)) == []
    helped = [_cell(row, "6+7+7", 6, {"corrector": 7}, frechet=1.0) for row in ("teacher", "student")]
    assert sentences(_results(*helped)) == []


def test_sentences_name_the_best_guidance_weight() -> None:
    cells = [_cell("student", f"w {w}", 4, {"guidance": w}, frechet=abs(w - 2.0)) for w in (1.0, 2.0, 4.0)]
    assert sentences(_results(*cells)) == ["Fréchet distance, best of student: 0 (w 2.0)."]


def test_equal_entropy_interpolates_within_the_teachers_curve_only() -> None:
    points = {"teacher": [(1.0, 10.0), (3.0, 20.0)], "student": [(2.0, 8.0), (3.5, 9.0)]}
    cells = [
        _cell(row, f"T {i}", 4, {"temperature": i}, entropy=entropy, perplexity=value)
        for row, curve in points.items()
        for i, (entropy, value) in enumerate(curve)
    ]
    assert equal_entropy(_results(*cells), 4, "perplexity") == [(2.0, 8.0, 15.0)]
    assert equal_entropy(_results(*cells[1:]), 4, "perplexity") == []


VALUES = np.arange(30.0)
INTERVALS = {
    "bootstrap over samples": of_mean(VALUES),
    "bootstrap over prompts": of_mean(VALUES, over="prompts"),
    "Student's t over 10 splits of the samples": of_splits(1.0, list(VALUES[:10])),
    "Student's t over 10 random halvings of the samples": of_halves(1.0, VALUES[:20].reshape(10, 2)),
    "Student's t over 5 subsets of samples and reference": of_subsets(list(VALUES[:5])),
    "Student's t over 6 repeats": of_repeats(list(VALUES[:6])),
}


@pytest.mark.parametrize("words", INTERVALS)
def test_interval_caption_says_what_the_interval_is_over(words: str) -> None:
    cell = _cell("teacher", "8 steps", 8, {})
    cell.figures = {"frechet": figure_of(INTERVALS[words], "lower")}
    (table, _) = protocol_tables(_results(cell), PROTOCOL)
    assert table.caption == f"± is half the width of the 95 % interval: by {words}."


def test_interval_caption_groups_figures_by_their_interval() -> None:
    cell = _cell("teacher", "8 steps", 8, {}, mauve=1.0)
    splits = INTERVALS["Student's t over 10 splits of the samples"]
    cell.figures |= {"frechet": figure_of(splits, "lower"), "is": figure_of(splits, "higher")}
    cell.figures |= {"precision": figure_of(of_mean(VALUES), "higher")}
    results = _results(cell)
    assert interval_caption(results, ["frechet", "is", "precision", "mauve"]) == (
        "± is half the width of the 95 % interval: Fréchet distance, inception score by Student's t over 10 splits of"
        " the samples; precision by bootstrap over samples."
    )
    assert interval_caption(results, ["mauve"]) == ""
    cell.figures["frechet"] = figure_of(Interval(1.0, 1.0, 0.0, 2.0, "splits"), "lower")
    assert "Student's t over splits" in interval_caption(_results(cell), ["frechet"]), "a file of an earlier version"
