"""Differences of results: intervals, verdicts, and what may not be compared."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from di4c_cli.errors import UserError
from di4c_cli.evaluation.compare import compare
from di4c_cli.evaluation.results import Cell, Figure, Instrument, Results, load


def _results(value: float, se: float | None = 1.0, n: int = 100, metric: str = "kid", **changes: object) -> Results:
    figure = Figure(value=value, se=se, better="lower")
    cell = Cell(row="student", column="4 steps", steps=4, n=n, seed=0, seconds=1.0, figures={metric: figure})
    facts = {
        "protocol": "p",
        "title": "t",
        "created": "now",
        "seconds": 1.0,
        "device": "cpu",
        "threads": 1,
        "packages": {},
        "models": [],
        "instruments": [Instrument(name="judge", kind="judge", digest="a")],
        "cells": [cell],
    }
    return Results(**{**facts, **changes})  # type: ignore[arg-type]


@pytest.mark.parametrize(
    ("b", "verdict"), [(10.0, "equal"), (12.0, "within noise"), (6.0, "B better"), (14.0, "B worse")]
)
def test_compare_gives_verdicts(b: float, verdict: str) -> None:
    (found,) = compare(_results(10.0), _results(b))
    assert found.verdict == verdict
    assert found.low == pytest.approx(b - 10 - 1.96 * 2**0.5, abs=0.01)


def test_compare_does_not_compare_n_dependent_figures_across_n() -> None:
    (found,) = compare(_results(10.0, metric="frechet"), _results(5.0, metric="frechet", n=200))
    assert found.verdict == "not comparable: n is 100 and 200"
    (found,) = compare(_results(10.0), _results(5.0, n=200))
    assert found.verdict == "B better"


def test_compare_claims_nothing_without_intervals() -> None:
    (found,) = compare(_results(10.0, None), _results(5.0))
    assert found.verdict == "no interval" and found.low is None


def test_compare_rejects_results_measured_differently() -> None:
    with pytest.raises(UserError, match="different protocols, 'p' and 'q'"):
        compare(_results(1.0), _results(1.0, protocol="q"))
    other = [Instrument(name="judge", kind="judge", digest="b")]
    with pytest.raises(UserError, match="different instruments"):
        compare(_results(1.0), _results(1.0, instruments=other))
    moved = [Instrument(name="judge", kind="judge", digest="a", reference_digest="x")]
    with pytest.raises(UserError, match="different references"):
        compare(_results(1.0), _results(1.0, instruments=moved))
    with pytest.raises(UserError, match="no cell in common"):
        other_cell = _results(1.0).cells[0].model_copy(update={"column": "8 steps"})
        compare(_results(1.0), _results(1.0, cells=[other_cell]))


def test_load_reads_results_of_di4c_0_1(tmp_path: Path) -> None:
    """Schema 1 called the task `world` and had no repeats, main figure or steps saved."""
    tree = _results(10.0, task="digits").model_dump(mode="json")
    for key in ("task", "main", "diversity", "steps_saved"):
        del tree[key]
    del tree["cells"][0]["repeats"], tree["cells"][0]["figures"]["kid"]["repeats"]
    (tmp_path / "results.json").write_text(json.dumps(tree | {"world": "digits", "di4c_results": 1}))
    old = load(tmp_path)
    assert (old.task, old.main_figure, old.cells[0].repeats) == ("digits", "kid", 1)
    assert compare(old, _results(10.0))[0].verdict == "equal"
