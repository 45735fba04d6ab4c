"""The names of the toy tasks. This module does not import torch."""

from __future__ import annotations

from typing import Literal, get_args

TaskName = Literal["fashion", "digits", "pixels", "words"]
TASK_NAMES: tuple[TaskName, ...] = get_args(TaskName)
