"""Differences of results: intervals, verdicts, and what may not be compared."""

from __future__ import annotations

import pytest

from di4c_cli.errors import UserError
from di4c_cli.evaluation.compare import compare
from di4c_cli.evaluation.results import Cell, Figure, Instrument, Results


def _results(
    value: float, se: float | None = 1.0, n: int = 100, metric: str = "kid", **changes: object
) -> Results:
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
    ("b", "verdict"),
    [(10.0, "equal"), (12.0, "within noise"), (6.0, "B better"), (14.0, "B worse")],
)
def test_verdicts(b: float, verdict: str) -> None:
    (found,) = compare(_results(10.0), _results(b))
    assert found.verdict == verdict
    assert found.low == pytest.approx(b - 10 - 1.96 * 2**0.5, abs=0.01)


def test_figures_that_depend_on_n_are_not_compared_across_n() -> None:
    (found,) = compare(_results(10.0, metric="frechet"), _results(5.0, metric="frechet", n=200))
    assert found.verdict == "not comparable: n is 100 and 200"
    (found,) = compare(_results(10.0), _results(5.0, n=200))
    assert found.verdict == "B better"


def test_without_intervals_nothing_is_claimed() -> None:
    (found,) = compare(_results(10.0, None), _results(5.0))
    assert found.verdict == "no interval" and found.low is None


def test_results_measured_differently_are_refused() -> None:
    with pytest.raises(UserError, match="different protocols, 'p' and 'q'"):
        compare(_results(1.0), _results(1.0, protocol="q"))
    other = [Instrument(name="judge", kind="judge", digest="b")]
    with pytest.raises(UserError, match="different instruments"):
        compare(_results(1.0), _results(1.0, instruments=other))
    moved = [Instrument(name="judge", kind="judge", digest="a", reference_digest="x")]
    with pytest.raises(UserError, match="different references"):
        compare(_results(1.0), _results(1.0, instruments=moved))
    with pytest.raises(UserError, match="no cell in common"):
        compare(_results(1.0), _results(1.0, cells=[]))
