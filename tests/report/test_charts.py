"""Lines of the plots: families of rows, draws of two precisions, trade-offs in the order of their points."""

from __future__ import annotations

from di4c_cli.evaluation.results import Cell, Figure, Results
from di4c_cli.report.charts import ROW_COLOURS, main_chart, row_colour, steps_chart
from di4c_cli.report.sections import quality
from di4c_cli.report.summary import sentences


def results_of(*cells: Cell) -> Results:
    facts = {"protocol": "p", "title": "t", "created": "now", "seconds": 1, "device": "cpu", "threads": 1}
    return Results(**facts, packages={}, models=[], instruments=[], cells=list(cells))  # type: ignore[arg-type]


def cell(row: str, steps: int, settings: dict[str, object] | None = None, **values: float) -> Cell:
    figures = {name: Figure(value=value) for name, value in values.items()}
    column = f"{row} {steps} {settings}"
    return Cell(row=row, column=column, steps=steps, n=9, seed=0, seconds=1, settings=settings or {}, figures=figures)


def test_families_share_colours_and_differ_in_style() -> None:
    rows = ["sdtt-6", "sdtt-6 + di4c", "sdtt-6 + di4c2", "sdtt-7", "sdtt-7 + di4c", "sdtt-7 + di4c2"]
    lines = steps_chart(results_of(*(cell(row, 4, perplexity=1.0) for row in rows)), "perplexity").lines
    shown = {line.name: (line.colour, line.style) for line in lines if line.points}
    assert list(shown) == rows and len(set(shown.values())) == 6
    assert shown["sdtt-6"][0] == shown["sdtt-7"][0] == ROW_COLOURS["teacher"]
    assert shown["sdtt-6 + di4c"][0] == shown["sdtt-7 + di4c"][0] == ROW_COLOURS["student"]
    assert len({shown[row][1] for row in rows[:3]}) == 1 == len({shown[row][1] for row in rows[3:]})


def test_families_differ_from_a_teacher_without_one() -> None:
    rows = ["teacher", "sdtt-6", "sdtt-6+di4c"]
    lines = steps_chart(results_of(*(cell(row, 4, perplexity=1.0) for row in rows)), "perplexity").lines
    assert len({(line.colour, line.style) for line in lines if line.points}) == 3


def test_rows_without_a_family_have_colours_of_their_own() -> None:
    results = results_of(*(cell(row, 4, perplexity=1.0) for row in ("teacher", "student", "di4c-d", "a+b")))
    assert len({row_colour(results, row) for row in ("teacher", "student", "di4c-d", "a+b")}) == 4


def test_draws_of_two_precisions_are_lines_and_sentences_of_their_own() -> None:
    cells = [
        cell(row, steps, {"dtype": dtype}, perplexity=value * steps)
        for row, value in (("teacher", 4.0), ("student", 2.0))
        for steps in (1, 2)
        for dtype in ("float32", "float64")
    ]
    results = results_of(*cells)
    lines = [line for line in main_chart(results).lines if line.points]
    assert [line.name for line in lines] == ["teacher, 32-bit", "teacher, 64-bit", "student, 32-bit", "student, 64-bit"]
    assert all([x for x, _ in line.points] == [1.0, 2.0] for line in lines)
    assert len({(line.colour, line.style) for line in lines}) == 4
    text = sentences(results)
    assert [line.split(":")[0] for line in text] == ["float32 draws"] * 2 + ["float64 draws"] * 2
    assert "<text" in quality(results) and "student, 64-bit" in quality(results), "the page has a legend of line styles"


def test_paper_line_is_drawn_once_for_two_precisions() -> None:
    both = [cell("teacher", 4, {"dtype": dtype}, frechet=1.0) for dtype in ("float32", "float64")]
    results = results_of(*(one.model_copy(update={"paper": {"frechet": 2.0}}) for one in both))
    assert [line.name for line in steps_chart(results, "frechet").lines if line.points == [(4.0, 2.0)]] == [
        "teacher (paper)"
    ]


def test_steps_chart_of_a_wide_range_has_a_logarithmic_axis() -> None:
    for last, logarithmic in ((10.0, True), (100.0, False)):
        results = results_of(cell("teacher", 1, frechet=400.0), cell("teacher", 2, frechet=last))
        assert steps_chart(results, "frechet").log_y is logarithmic


def test_main_chart_of_continuations_is_quality_against_diversity_in_order_of_steps() -> None:
    cells = [cell("teacher", steps, perplexity=100.0 / steps, self_bleu=10.0 + steps % 5) for steps in (32, 8, 16)]
    chart = main_chart(results_of(*cells))
    assert chart.arrows and (chart.x_title, chart.y_title) == ("Self-BLEU ↓", "generative perplexity ↓")
    assert chart.lines[0].points == [(13.0, 12.5), (11.0, 6.25), (12.0, 3.125)]
    assert [text for _, _, text in chart.notes] == ["8", "16", "32"]
    assert "generative perplexity ↓ against Self-BLEU" in quality(results_of(*cells))


def test_main_chart_of_guidance_weights_labels_each_run_of_weights_once() -> None:
    cells = [
        cell(row, 4, {"guidance": weight}, frechet=weight, **{"is": 2 * weight})
        for row in ("teacher", "student")
        for weight in (3.0, 1.0, 2.0)
    ]
    chart = main_chart(results_of(*cells))
    assert [line.name for line in chart.lines] == ["teacher, 4 steps", "student, 4 steps"]
    assert chart.lines[1].points == [(2.0, 1.0), (4.0, 2.0), (6.0, 3.0)]
    assert [text for _, _, text in chart.notes] == ["1", "2", "3"]
