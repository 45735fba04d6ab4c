"""Fast kernels: the values and gradients of the plain formulas of the methods, in chunks of rows."""

from __future__ import annotations

from di4c_cli.methods.kernels.chunked import evaluate, negative_log_likelihood
from di4c_cli.methods.kernels.inputs import LossInputs, LossOutput, TermWeights
from di4c_cli.methods.kernels.rows import RowTerm, sum_over_rows

__all__ = ["LossInputs", "LossOutput", "RowTerm", "TermWeights", "evaluate", "negative_log_likelihood", "sum_over_rows"]
