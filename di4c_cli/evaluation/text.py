"""Text figures of the embedded world: bits per character under the n-gram judge, and diversity beside it."""

from __future__ import annotations

from typing import Any

import numpy as np
from torch import Tensor

from di4c_cli.evaluation.parts import Parts, Scores
from di4c_cli.evaluation.result import Figure, Instrument
from di4c_cli.evaluation.scorer import Scorer, figure
from di4c_cli.metric.diversity import GROUP, distinct, unigram_entropy
from di4c_cli.metric.interval import of_mean
from di4c_cli.metric.ngram import CharacterModel


class NgramScorer(Scorer):
    """Quality by a character model, diversity by each sample's own tokens; neither means much alone."""

    main = "bits_per_char"

    def __init__(self, judge: CharacterModel, fitted_to: str, anchor: float | None = None) -> None:
        self.judge, self.fitted_to, self.anchor = judge, fitted_to, anchor

    def instrument(self) -> Instrument:
        detail = {} if self.anchor is None else {"held_out_bits_per_char": self.anchor}
        return Instrument(
            name=self.judge.name,
            kind="judge",
            digest=self.judge.digest,
            reference=self.fitted_to,
            detail=detail,
        )

    def score(self, x: Tensor, decoded: Any) -> Scores:
        ids = x.cpu().numpy()
        return {
            "bits_per_char": self.judge.bits_per_character(decoded),
            "entropy": unigram_entropy(ids),
            "ids": ids.astype(np.int32),
        }

    def summarise(self, parts: Parts) -> dict[str, Figure]:
        return {
            "bits_per_char": figure(of_mean(parts.column("bits_per_char")), "lower", "bits"),
            "entropy": figure(of_mean(parts.column("entropy")), "higher", "nats"),
            "distinct": figure(
                of_mean(distinct(parts.column("ids"), 2)),
                "higher",
                note=f"bigrams, groups of {GROUP} samples",
            ),
        }
