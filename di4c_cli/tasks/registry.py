"""Toy tasks by name and by model. A fifth task is one file, its name in `config.TaskName` and a line here."""

from __future__ import annotations

from di4c_cli.embedded import ask_name
from di4c_cli.errors import UserError
from di4c_cli.model import Model
from di4c_cli.tasks.base import ToyTask
from di4c_cli.tasks.digits import DigitsTask
from di4c_cli.tasks.pixels import PixelsTask
from di4c_cli.tasks.text import TextTask
from di4c_cli.tasks.vq import VqTask

TASKS: dict[str, ToyTask] = {task.name: task for task in (VqTask(), DigitsTask(), PixelsTask(), TextTask())}


def get_task(name: str) -> ToyTask:
    """A task by name."""
    name = ask_name(name)
    if name not in TASKS:
        raise UserError(f"There is no toy task '{name}'.", f"Choose one of {', '.join(TASKS)}.")
    return TASKS[name]


def task_of(model: Model) -> ToyTask | None:
    """The toy task whose samples a model makes, by its codec; None for every other model."""
    return next((task for task in TASKS.values() if task.has_codec(model.config.codec)), None)
