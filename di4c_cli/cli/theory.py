"""`di4c theory`: the paper's theorems in numbers, by enumeration."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Annotated

import typer

from di4c_cli.cli.console import emit, emit_json, progress, say, show_table


def theory(out: Annotated[Path, typer.Option(help="Folder for theory.json and theory.png.")] = Path("theory")) -> None:
    """Check theorems 1 and 2 and the lower bound by enumeration. The last line of the output is one JSON object."""
    import torch

    from di4c_cli import files
    from di4c_cli.theory import LATENTS, TEACHER_STEPS, TwoPositionExample, log_slope, save_plot, theorem_1, theorem_2

    torch.set_num_threads(1)  # the matrices are tiny
    example = TwoPositionExample()
    first = theorem_1(example)
    with progress("students", len(LATENTS)) as advance:
        second = theorem_2(example, advance=advance)
    rows = []
    for row in first:
        lower = "–" if row["lower"] is None else f"{row['lower']:.2e}"
        rows.append([str(row["steps"]), lower, *(f"{row[key]:.5f}" for key in ("error", "upper"))])
        rows[-1].insert(3, f"{row['steps'] * row['error']:.4f}")
    header = ["steps N", "lower bound c / N", "total variation to the data", "N × this", "sum of one-step distances"]
    show_table("Theorem 1: N-step analytical sampling", header, rows)
    last = first[-3:]
    slope = log_slope([row["steps"] for row in last], [row["error"] for row in last])
    emit(f"Slope on logarithmic axes over N = {last[0]['steps']} … {last[-1]['steps']}: {slope:.3f}.")
    rows = [[str(row["latents"]), f"{row['student']:.5f}", f"{row['bound']:.5f}"] for row in second]
    header = ["latents", f"one-step student to {TEACHER_STEPS}-step teacher", "bound from its losses"]
    show_table("Theorem 2: a mixture of products in one step", header, rows)
    emit(f"The one-step teacher's distance is {second[0]['one_step_teacher']:.5f}.")
    found = {"theory": "theorems 1 and 2", "theorem_1": first, "slope": slope, "theorem_2": second}
    out.mkdir(parents=True, exist_ok=True)
    files.write_text(out / "theory.json", json.dumps(found, indent=2) + "\n")
    save_plot(first, second, out / "theory.png")
    say(f"wrote {out / 'theory.json'} and {out / 'theory.png'}")
    emit_json(found)
