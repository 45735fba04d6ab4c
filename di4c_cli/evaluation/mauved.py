"""MAUVE of samples against real text, in the features of a causal judge."""

from __future__ import annotations

from typing import Any

import numpy as np
from torch import Tensor

from di4c_cli.evaluation.parts import Parts, Scores
from di4c_cli.evaluation.result import Figure, Instrument
from di4c_cli.evaluation.scorer import Scorer
from di4c_cli.metric.judge import CausalJudge
from di4c_cli.metric.mauve import RUNS, SCALE, mauve_runs
from di4c_cli.metric.ngram import text_digest

LENGTH = 100
"""Judge tokens looked at in each text."""


class MauveScorer(Scorer):
    """Mean over runs of the quantisation; the spread is that of the runs, not of the samples."""

    main = "mauve"

    def __init__(self, judge: CausalJudge, reference: list[str], name: str) -> None:
        self.judge, self.name = judge, name
        self.reference_count, self.reference_digest = len(reference), text_digest(reference)
        self.reference = judge.features(reference, LENGTH).double().numpy()

    def instrument(self) -> Instrument:
        return Instrument(
            name=self.judge.name,
            kind="judge",
            digest=self.judge.digest,
            reference=self.name,
            reference_n=self.reference_count,
            reference_digest=self.reference_digest,
            detail={"runs": RUNS, "scale": SCALE, "tokens": LENGTH, "features": "last hidden state"},
        )

    def score(self, x: Tensor, decoded: Any) -> Scores:
        return {"features": self.judge.features(decoded, LENGTH).numpy().astype(np.float32)}

    def summarise(self, parts: Parts) -> dict[str, Figure]:
        runs = mauve_runs(parts.column("features"), self.reference)
        spread = float(runs.std(ddof=1))
        note = f"mean of {RUNS} runs, their standard deviation {spread:.4f}; depends on n"
        return {"mauve": Figure(value=float(runs.mean()), better="higher", note=note)}
