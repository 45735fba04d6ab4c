"""`di4c compare`: differences between two result files."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

import typer

from di4c_cli.cli.console import emit, emit_json, show_table


def compare(
    a: Annotated[Path, typer.Argument(help="A results.json or its folder.")],
    b: Annotated[Path, typer.Argument(help="A second one of the same protocol.")],
    json: Annotated[bool, typer.Option("--json", help="Print the differences as one JSON object.")] = False,
) -> None:
    """Print the differences B - A with 95 % intervals and mark those within noise."""
    from di4c_cli.evaluation.compare import compare as differences
    from di4c_cli.evaluation.results import load
    from di4c_cli.report.table import METRIC_NAMES, number

    left, right = load(a), load(b)
    found = differences(left, right)
    if json:
        emit_json({"a": str(a), "b": str(b), "differences": [vars(one) for one in found]})
        return
    rows = []
    for one in found:
        interval = "–" if one.low is None or one.high is None else f"{number(one.low)} to {number(one.high)}"
        name = METRIC_NAMES.get(one.metric, one.metric)
        values = [number(value) for value in (one.a, one.b, one.difference)]
        rows.append([one.row, one.column, name, *values, interval, one.verdict])
    header = ["model", "sampling", "figure", "A", "B", "B - A", "95 % interval", "verdict"]
    show_table(f"A: {a}   B: {b}   ({left.protocol})", header, rows)
    emit("The interval of B - A takes A and B as independent: 1.96 times the root of their squared standard errors.")
    noise = sum(one.verdict == "within noise" for one in found)
    judged = sum(one.verdict in ("within noise", "B better", "B worse", "different") for one in found)
    emit(f"{noise} of {judged} differences are within noise.")
    emit(f"If nothing differed, about {judged * 0.05:.1f} of {judged} would still be outside by chance.")
