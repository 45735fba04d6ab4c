"""Image figures from feature rows in parts: Fréchet distance, KID, inception score, precision and recall."""

from __future__ import annotations

from typing import Any

import numpy as np
from torch import Tensor

from di4c_cli.errors import UserError
from di4c_cli.evaluation.parts import Parts, Scores
from di4c_cli.evaluation.result import Figure, Instrument
from di4c_cli.evaluation.scorer import Scorer, figure
from di4c_cli.metric.features import FeatureNetwork
from di4c_cli.metric.frechet import Moments, frechet
from di4c_cli.metric.inception_score import ClassLaw
from di4c_cli.metric.interval import FEWEST, SPLITS, halvings, of_halves, of_mean, of_splits, split_of
from di4c_cli.metric.kid import kernel_distance
from di4c_cli.metric.manifold import NEIGHBOURS, covered, half_recalls, precision_recall, radii
from di4c_cli.metric.reference import KEPT, Reference

ENOUGH = 20
"""A covariance of F features from fewer than 20 F samples makes the Fréchet distance visibly too large."""


class ImageScorer(Scorer):
    """Features of generated images against a reference."""

    main = "frechet"

    def __init__(
        self, network: FeatureNetwork, reference: Reference, detail: dict[str, Any] | None = None
    ) -> None:
        reference.check_network(network)
        self.network, self.reference, self.detail = network, reference, detail or {}

    def instrument(self) -> Instrument:
        width = int(self.reference.moments.mean.shape[0])
        return Instrument(
            name=self.network.name,
            kind="features",
            digest=self.network.digest,
            reference=self.reference.name,
            reference_n=self.reference.count,
            reference_digest=self.reference.digest,
            detail={"features": width, "neighbours": NEIGHBOURS, "kept": KEPT, **self.detail},
        )

    def score(self, x: Tensor, decoded: Any) -> Scores:
        if not isinstance(decoded, np.ndarray) or decoded.ndim < 3:
            raise UserError("Image metrics need images.", "Use --judge for text.")
        features, probabilities = self.network.embed(decoded)
        out = {"features": features.astype(np.float32)}
        if probabilities is not None:
            out["probabilities"] = probabilities
        return out

    def summarise(self, parts: Parts) -> dict[str, Figure]:
        sums = _Sums(parts)
        out = {"frechet": self._frechet(sums), "kid": self._kid(sums)}
        if sums.laws:
            out["is"] = _inception(sums)
        if len(sums.kept) > NEIGHBOURS:
            out |= self._manifold(sums)
        return out

    def _frechet(self, sums: _Sums) -> Figure:
        value = frechet(sums.whole, self.reference.moments)
        splits = [frechet(m, self.reference.moments) for m in sums.moments if m.count > 1]
        width = len(sums.whole.mean)
        note = ""
        if sums.whole.count < ENOUGH * width:
            note = f"biased upwards: {sums.whole.count} samples for {width} features"
        return figure(of_splits(value, splits, scaling_bias=True), "lower", note=note)

    def _kid(self, sums: _Sums) -> Figure:
        reference = self.reference.features
        groups = [g for g in np.array_split(sums.kept, sums.splits) if len(g) > 1]
        spread = [kernel_distance(g, reference) for g in groups] if sums.splits > 1 else []
        return figure(
            of_splits(kernel_distance(sums.kept, reference), spread), "lower", note=_kept_note(sums)
        )

    def _manifold(self, sums: _Sums) -> dict[str, Figure]:
        reference = self.reference.features
        inside = covered(sums.kept, reference, radii(reference)).astype(float)
        _, recall = precision_recall(sums.kept, reference)
        enough = sums.splits > 1 and len(sums.kept) >= 2 * (NEIGHBOURS + 1)
        pairs = half_recalls(sums.kept, reference, halvings(len(sums.kept))) if enough else np.zeros((0, 2))
        return {
            "precision": figure(of_mean(inside), "higher", note=_kept_note(sums)),
            "recall": figure(of_halves(recall, pairs), "higher", note=_kept_note(sums)),
        }


def _kept_note(sums: _Sums) -> str:
    total = sums.whole.count
    return f"on the first {len(sums.kept)} of {total} samples" if len(sums.kept) < total else ""


def _inception(sums: _Sums) -> Figure:
    """Mean over consecutive splits, as published."""
    scores = [law.score for law in sums.laws]
    interval = of_splits(float(np.mean(scores)), scores)
    return figure(interval, "higher", note=f"mean over {len(scores)} splits")


class _Sums:
    """One pass over the parts: moments and class laws per split, and the first rows."""

    def __init__(self, parts: Parts) -> None:
        self.splits = SPLITS if parts.n >= max(FEWEST, 2 * SPLITS) else 1
        self.moments: list[Moments] = []
        self.laws: list[ClassLaw] = []
        kept: list[np.ndarray] = []
        room = KEPT
        for first, scores in parts:
            features = scores["features"]
            self._add(first, parts.n, features, scores.get("probabilities"))
            kept.append(features[:room])
            room -= len(kept[-1])
        self.kept = np.concatenate(kept)
        self.whole = Moments(self.kept.shape[1])
        for moments in self.moments:
            self.whole.merge(moments)

    def _add(self, first: int, n: int, features: np.ndarray, probabilities: np.ndarray | None) -> None:
        if not self.moments:
            self.moments = [Moments(features.shape[1]) for _ in range(self.splits)]
            if probabilities is not None:
                self.laws = [ClassLaw(probabilities.shape[1]) for _ in range(self.splits)]
        owner = np.array([split_of(first + row, n, self.splits) for row in range(len(features))])
        for split in np.unique(owner):
            self.moments[split].add(features[owner == split])
            if probabilities is not None:
                self.laws[split].add(probabilities[owner == split])
