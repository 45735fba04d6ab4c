"""The latency section: the measurement of `bench-latency` in the run, and the wall time of the evaluation."""

from __future__ import annotations

from pathlib import Path
from typing import Any

from di4c_cli.errors import UserError
from di4c_cli.evaluation.results import Results
from di4c_cli.foreign.regular import read_bytes
from di4c_cli.foreign.structured import MAX_JSON_BYTES, parse_json
from di4c_cli.report.sections import html_table, html_text
from di4c_cli.report.table import number

LATENCY_FILE = "latency.json"
LATENCY_RATIOS = {
    "overhead": "student / teacher",
    "over_body": "teacher's sampler / body only",
    "textbook_over_ours": "textbook 32-bit sampler / ours",
}
"""Keys of `bench-latency`'s results that are ratios, in words."""


def latency(results: Results, run: Path | None) -> str:
    """Time per sample here, and `bench-latency`'s measurement if the run has one."""
    rows = [
        [
            cell.row,
            cell.column,
            number(1000 * cell.seconds / cell.n / cell.repeats),
            "–" if cell.tokens_per_pass is None else number(cell.tokens_per_pass),
            f"{cell.n}",
        ]
        for cell in results.cells
        if cell.n and cell.seconds
    ]
    measured = "" if run is None else bench_tables(run / LATENCY_FILE)
    where = f"on {html_text(results.device)} with {results.threads} threads"
    hint = "" if measured else "; <code>di4c bench-latency</code> measures it properly"
    wall = html_table(["model", "sampling", "ms per sample", "tokens per forward pass", "samples"], rows)
    wall += f'<p class="soft">Wall time of this evaluation, scoring included, {where}{hint}.</p>'
    if measured:
        wall = f"<details><summary>Wall time of this evaluation</summary>{wall}</details>"
    return f"<h2>Latency</h2>{measured}{wall}"


def bench_tables(path: Path) -> str:
    """Every side's figures, the ratios with their intervals and the machine, from `bench-latency`'s last line.

    Empty if there is no such file or it holds anything else: a file beside the results must not stop the page.
    """
    try:
        bench = parse_json(read_bytes(path, MAX_JSON_BYTES, "measurement").strip().rpartition(b"\n")[2])
        found = bench["results"]
        rows = [_side(result, name, side) for result in found for name, side in result["sides"].items()]
        ratios = [ratio_text(result, key) for result in found for key in LATENCY_RATIOS if key in result]
        machine = f"{bench['processor']}, {bench['device']}, {bench['threads']} threads, torch {bench['torch']}"
    except (UserError, OSError, LookupError, TypeError, ValueError, AttributeError, ArithmeticError):
        return ""
    if not rows:
        return ""
    lines = "".join(f"<li>{html_text(line)}</li>" for line in ratios)
    table = html_table(list(rows[0]), [list(row.values()) for row in rows])
    return f'{table}<ul>{lines}</ul><p class="soft">Measured on {html_text(machine)}.</p>'


def _side(result: dict[str, Any], name: str, side: dict[str, Any]) -> dict[str, str]:
    memory = side.get("peak_mb")
    return {
        "experiment": str(result["experiment"]),
        "steps": str(result["settings"]["steps"]),
        "batch": str(result["batch"]),
        "side": name,
        "seconds per batch": f"{side['mean']:.4f} ± {side['std']:.4f}",
        "p50": f"{side['p50']:.4f}",
        "p95": f"{side['p95']:.4f}",
        "decoding": f"{side.get('decoding', 0):.1%}",
        "samples/s": number(float(side["samples_per_second"])),
        "tokens/pass": number(float(side["tokens_per_pass"])) if "tokens_per_pass" in side else "–",
        "peak MB": "–" if memory is None else f"{memory:.0f}",
    }


def ratio_text(result: dict[str, Any], key: str) -> str:
    """A ratio with its interval and, where the paper has it, the paper's."""
    ratio = result[key]
    interval = f"{ratio['low']:.3f} to {ratio['high']:.3f}"
    text = f"{result['experiment']}: {LATENCY_RATIOS[key]} {ratio['ratio']:.3f} (95 %: {interval})"
    paper = result.get("paper")
    if key != "overhead" or not paper:
        return text
    return f"{text}, paper {paper['student'][0] / paper['teacher'][0]:.3f}"
