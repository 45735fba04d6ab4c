"""Fast kernel of the Di4C terms: the same values and gradients as `methods.di4c.dense_terms`, in chunks of rows."""

from __future__ import annotations

from di4c_cli.methods.kernels.chunked import evaluate, negative_log_likelihood
from di4c_cli.methods.kernels.inputs import LossInputs, LossOutput, TermWeights

__all__ = ["LossInputs", "LossOutput", "TermWeights", "evaluate", "negative_log_likelihood"]
