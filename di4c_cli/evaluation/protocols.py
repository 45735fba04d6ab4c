"""Protocols by name: those that `protocols.yaml` describes, and those of the toy tasks."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any

import yaml

from di4c_cli.embedded import STEPS_SAVED, ask_name
from di4c_cli.errors import UserError
from di4c_cli.evaluation.protocol import CellSpec, EvaluationProtocol, PromptSpec, column, steps_protocol
from di4c_cli.recipe_file import nearest
from di4c_cli.tasks.base import ToyTask
from di4c_cli.tasks.registry import TASKS

SAMPLING_KEYS = ("sampler", "guidance", "temperature", "corrector", "hybrid")
CORRECTOR_STEP_SIZES = (1e-3, 1e-4, 1e-5)
TASK_SAMPLES = 2000
STEPS_SAVED_REPEATS = 6
TEACHER_STEPS = (1, 2, 4, 8, 16, 32)
STUDENT_STEPS = (1, 2, 4, 8, 16)


def read_protocol(name: str, entry: Mapping[str, Any]) -> EvaluationProtocol:
    """A protocol as an entry of `protocols.yaml` describes it."""
    cells = tuple(_cell(values, entry) for cell in entry["cells"] for values in _expand(cell))
    prompts = PromptSpec(**entry["prompts"]) if "prompts" in entry else None
    rest: dict[str, Any] = {key: entry[key] for key in ("title", "n", "labels", "shape") if key in entry}
    rest |= {key: tuple(entry[key]) for key in ("metrics", "notes", "scorers") if key in entry}
    return EvaluationProtocol(name, cells=cells, prompts=prompts, **rest)


def _expand(entry: Mapping[str, Any]) -> Iterator[dict[str, Any]]:
    """One dictionary for every row and every place in the entry's lists."""
    rows = entry["row"] if isinstance(entry["row"], list) else [entry["row"]]
    lists = {key: value for key, value in entry.items() if key != "row" and isinstance(value, list)}
    for row in rows:
        for i in range(max(map(len, lists.values()), default=1)):
            yield {**entry, "row": row, **{key: value[i] for key, value in lists.items()}}


def _cell(values: Mapping[str, Any], entry: Mapping[str, Any]) -> CellSpec:
    return CellSpec(
        values["row"],
        entry.get("column", "{steps} steps").format(**values),
        values["steps"],
        {key: values[key] for key in SAMPLING_KEYS if key in values},
        {metric: float(values[metric]) for metric in entry.get("metrics", ()) if metric in values},
        tuple({"corrector_step": size} for size in CORRECTOR_STEP_SIZES) if values.get("corrector") else (),
        str(values["label"]) if "label" in values else None,
        (values.get("line", values["row"]), entry["heading"].format(**values)) if "heading" in entry else None,
    )


def task_protocol(task: ToyTask) -> EvaluationProtocol:
    """A toy task's models against steps."""
    title = f"{task.name}: quality against steps"
    plain = steps_protocol(task.name, title, ("teacher", "student"), task.protocol_steps, TASK_SAMPLES)
    return replace(plain, metrics=task.figures)


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
        (task.figures[0], task.diversity, "nearer_to_training"),
        extra_scorers=("memorisation",),
        repeats=STEPS_SAVED_REPEATS,
    )


PROTOCOLS: dict[str, EvaluationProtocol] = {
    name: read_protocol(name, entry)
    for name, entry in yaml.safe_load(Path(__file__).with_name("protocols.yaml").read_text(encoding="utf-8")).items()
} | {task.name: task_protocol(task) for task in TASKS.values()}


def get_protocol(name: str, task: ToyTask | None = None, steps: Sequence[int] | None = None) -> EvaluationProtocol:
    """A protocol by name; `task` and `steps` are those of `steps-saved`."""
    if name == STEPS_SAVED:
        if task is None:
            raise UserError(
                f"{STEPS_SAVED} compares models of a toy task.", "Name one with --student, or leave it out."
            )
        return steps_saved_protocol(task, steps)
    return PROTOCOLS[check_name(name)]


def check_name(name: str) -> str:
    """The present name of a protocol; an unknown one is rejected."""
    name, known = ask_name(name), [*PROTOCOLS, STEPS_SAVED]
    if name not in known:
        raise UserError(f"Unknown protocol '{name}'.{nearest(name, known)}", f"Known: {', '.join(known)}.")
    return name
