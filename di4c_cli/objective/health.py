"""Is the mixture alive? Gradient sizes per term and the influence of λ, measured on a few rows of every batch."""

from __future__ import annotations

from typing import TYPE_CHECKING

import torch
from torch import Tensor

if TYPE_CHECKING:
    from di4c_cli.objective.core import Chunk, Core, Problem

ROWS = 2
"""Rows per sample on which gradient norms and λ-sensitivity are measured; the norms are scaled up to all rows."""


class Probe:
    def __init__(self, problem: Problem, chunks: list[Chunk]) -> None:
        self.problem = problem

    def remember(self, chunk: Chunk, log_p: Tensor, teacher: Tensor | None, later: Tensor | None) -> None:
        pass

    def health(self, core: Core) -> dict[str, Tensor]:
        return {}
