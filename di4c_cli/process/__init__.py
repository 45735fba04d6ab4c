"""Forward processes: how data is corrupted, and the exact reverse step given p(x0|xt)."""

from __future__ import annotations

from typing import Any

from di4c_cli.draw import RowLogProbs
from di4c_cli.errors import UserError
from di4c_cli.process.base import Process, all_rows
from di4c_cli.process.markov import Gaussian, Markov, Uniform
from di4c_cli.process.masked import SCHEDULES, Masked

PROCESS_CLASSES: dict[str, type[Process]] = {"masked": Masked, "gaussian": Gaussian, "uniform": Uniform}

__all__ = ["SCHEDULES", "Gaussian", "Markov", "Masked", "Process", "RowLogProbs", "Uniform", "all_rows", "build"]


def build(config: dict[str, Any]) -> Process:
    """The process described by a config.json entry with its `type`."""
    options = dict(config)
    kind = options.pop("type", None)
    if kind not in PROCESS_CLASSES:
        raise UserError(f"Unknown process type '{kind}'.", f"Known: {', '.join(PROCESS_CLASSES)}.")
    return PROCESS_CLASSES[kind](**options)
