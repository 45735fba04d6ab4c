"""Protocols by name: those of the paper, which `protocols.yaml` describes, and those of the toy tasks."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any

import yaml

from di4c_cli.errors import UserError
from di4c_cli.evaluation.protocol import (
    HALF_OF_THE_STEPS,
    CellSpec,
    EvaluationProtocol,
    PromptSpec,
    column,
    steps_protocol,
)
from di4c_cli.recipe_file import nearest
from di4c_cli.tasks.base import ToyTask
from di4c_cli.tasks.registry import TASKS

FIGURE_ONLY = "The paper shows this as a figure without numbers ({}): there is nothing to print beside ours."
CORRECTOR_STEP_SIZES = (1e-3, 1e-4, 1e-5)
TASK_SAMPLES = 2000
STEPS_SAVED = "tiny-speedup"
STEPS_SAVED_REPEATS = 6
TEACHER_STEPS = (1, 2, 4, 8, 16, 32)
STUDENT_STEPS = (1, 2, 4, 8, 16)
ABSTRACT = (
    "Diffusion models have demonstrated exceptional performances in various fields of generative modeling. "
    "While they often outperform competitors including VAEs and GANs in sample quality and diversity, they "
    "suffer from slow sampling speed due to their iterative nature. Recently, dist"
)
"""The prompt of `owt-samples`."""


def paper_protocol(name: str, entry: Mapping[str, Any]) -> EvaluationProtocol:
    """A protocol as an entry of `protocols.yaml` describes it."""
    notes = [FIGURE_ONLY.format(entry["figure_only"])] if "figure_only" in entry else []
    metrics = tuple(entry.get("metrics", ()))
    return EvaluationProtocol(
        name,
        entry["title"],
        tuple(_cell(values, metrics) for cell in entry["cells"] for values in _expand(cell)),
        entry["n"],
        metrics,
        (*notes, *entry.get("notes", ())),
        entry.get("labels", "uniform"),
        tuple(entry["scorers"]) if "scorers" in entry else None,
        prompts=PromptSpec(**entry["prompts"]) if "prompts" in entry else None,
        shape=entry.get("shape", "metrics"),
    )


def _expand(entry: Mapping[str, Any]) -> Iterator[dict[str, Any]]:
    """One dictionary for every row and every place in the entry's lists."""
    rows = entry["row"] if isinstance(entry["row"], list) else [entry["row"]]
    lists = {key: value for key, value in entry.items() if key != "row" and isinstance(value, list)}
    for row in rows:
        for i in range(max(map(len, lists.values()), default=1)):
            yield {**entry, "row": row, **{key: value[i] for key, value in lists.items()}}


def _cell(values: Mapping[str, Any], metrics: Sequence[str]) -> CellSpec:
    row, steps = values["row"], values["steps"]
    paper = {metric: float(values[metric]) for metric in metrics if metric in values}
    cell = CellSpec(row, column(steps), steps, {}, paper)
    if row == "hybrid":
        cell = replace(cell, options={"hybrid": HALF_OF_THE_STEPS})
    if "name" in values:
        shown, place = f"{values['name']}, {cell.column}", (f"{row}, {values['name']}", cell.column)
        cell = replace(cell, column=shown, options={"sampler": values["sampler"]}, place=place)
    if "guidance" in values:
        options = {"sampler": "confidence", "guidance": float(values["guidance"])}
        cell = replace(cell, column=f"{cell.column}, w {values['guidance']:g}", options=options)
    if "label" in values:
        label = str(values["label"])
        cell = replace(cell, column=f"label {label}, {cell.column}", label=label)
    if "corrector" in values:
        n = values["corrector"]
        tries = tuple({"corrector_step": size} for size in CORRECTOR_STEP_SIZES) if n else ()
        cell = replace(cell, column=f"{steps}+{n}+{n}", options={"corrector": n}, best_of=tries)
    return cell


def task_protocol(task: ToyTask) -> EvaluationProtocol:
    """A toy task's models against steps."""
    title = f"{task.name}: quality against steps"
    plain = steps_protocol(task.name, title, ("teacher", "student"), task.protocol_steps, TASK_SAMPLES)
    return replace(plain, metrics=task.figures, labels="none")


def tiny_text_frontier() -> EvaluationProtocol:
    """Quality against entropy over temperatures: models are compared at equal entropy."""
    title = "tiny-text: quality against entropy over temperatures"
    heats = (0.6, 0.8, 0.9, 1.0, 1.1)
    plain = steps_protocol("tiny-text-frontier", title, ("teacher", "student"), (2, 4, 8), 500, heats)
    return replace(plain, metrics=("bits_per_char", "entropy", "distinct"), shape="lines")


def steps_saved_protocol(task: ToyTask, steps: Sequence[int] | None = None) -> EvaluationProtocol:
    """Teacher and student of a toy task against steps, repeated: `steps_saved` summarises the results.

    The teacher is also sampled at the student's step counts.
    """
    own = list(steps or STUDENT_STEPS)
    counts = {"teacher": sorted({*TEACHER_STEPS, *own}), "student": own}
    cells = tuple(CellSpec(row, column(k), k) for row, steps in counts.items() for k in steps)
    return EvaluationProtocol(
        STEPS_SAVED,
        f"{task.name}: steps saved at equal quality",
        cells,
        task.steps_saved_samples,
        (task.main, task.diversity, "nearer_to_training"),
        labels="none",
        extra_scorers=("memorisation",),
        repeats=STEPS_SAVED_REPEATS,
    )


def _paper_protocols() -> dict[str, EvaluationProtocol]:
    tree = yaml.safe_load(Path(__file__).with_name("protocols.yaml").read_text(encoding="utf-8"))
    return {name: paper_protocol(name, entry) for name, entry in tree.items()}


PROTOCOLS: dict[str, EvaluationProtocol] = {
    **_paper_protocols(),
    **{task.name: task_protocol(task) for task in TASKS.values()},
    "tiny-text-frontier": tiny_text_frontier(),
}


def protocol_names() -> list[str]:
    """All names, `tiny-speedup` included, which is one protocol for each toy task."""
    return [*PROTOCOLS, STEPS_SAVED]


def get_protocol(name: str, task: ToyTask | None = None, steps: Sequence[int] | None = None) -> EvaluationProtocol:
    """A protocol by name; `task` and `steps` are those of `tiny-speedup`."""
    if name == STEPS_SAVED:
        if task is None:
            raise UserError(
                f"{STEPS_SAVED} compares models of a toy task.", "Name one with --student, or leave it out."
            )
        return steps_saved_protocol(task, steps)
    check_name(name)
    return PROTOCOLS[name]


def check_name(name: str) -> None:
    """Reject an unknown protocol."""
    known = protocol_names()
    if name not in known:
        raise UserError(f"Unknown protocol '{name}'.{nearest(name, known)}", f"Known: {', '.join(known)}.")
