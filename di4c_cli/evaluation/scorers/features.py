"""Image figures from features: Fréchet distance, KID, inception score, precision and recall."""

from __future__ import annotations

from functools import cache, lru_cache, reduce
from operator import add
from pathlib import Path
from typing import Any

import numpy as np
from torch import Tensor

from di4c_cli.data.cache import stamp
from di4c_cli.errors import UserError
from di4c_cli.evaluation.config import ScorerOptions
from di4c_cli.evaluation.parts import ScoreParts, Scores, identity
from di4c_cli.evaluation.results import Figure, Instrument
from di4c_cli.evaluation.sample_files import files_of, image_batches
from di4c_cli.evaluation.sampling import CellSampling, labels_of
from di4c_cli.evaluation.scorers.base import Scorer, ScorerContext, figure_of, register_scorer
from di4c_cli.foreign.arrays import ArrayArchive
from di4c_cli.metric.feature_scores import ClassStatistics, FeatureMoments, frechet, kernel_distance, mean_of_pairs
from di4c_cli.metric.features import ClassifierFeatures, FeatureNetwork, ScriptedFeatures
from di4c_cli.metric.interval import (
    MIN_SAMPLES,
    SPLITS,
    Interval,
    halvings,
    of_halves,
    of_mean,
    of_splits,
    of_subsets,
    split_of,
)
from di4c_cli.metric.neighbours import NEIGHBOURS, half_recalls, precision_recall
from di4c_cli.metric.reference import FeatureReference, cached_reference, make_reference, require_size
from di4c_cli.metric.subsets import SUBSET_ROWS, SUBSETS, reference_subset, sample_subsets
from di4c_cli.tasks.base import ImageTask, ToyTask

MIN_SAMPLES_PER_FEATURE = 20
"""With fewer samples per feature the bias of the Fréchet distance is visible and the figure has a note."""
TASK_REFERENCE = 2000
"""Held-out images of a toy task in its reference; decoding more of fashion takes longer than sampling."""
ANCHOR_SAMPLES = 1000
"""Training images that show the figure of real data."""
DECODED_AT_ONCE = 500


@register_scorer("features")
class ImageScorer(Scorer):
    """Features of generated images against a reference."""

    main = "frechet"
    sampling: CellSampling | None = None
    """The cell that is being scored."""

    def __init__(
        self, network: FeatureNetwork, reference: FeatureReference, detail: dict[str, Any] | None = None
    ) -> None:
        reference.check_network(network)
        self.network, self.reference, self.detail = network, reference, detail or {}
        # the same for all cells
        self._real_pairs = cache(lambda number: mean_of_pairs(reference_subset(reference.features, number)))

    @classmethod
    def create(cls, context: ScorerContext) -> ImageScorer:
        """The named network and reference, else those of the toy task."""
        options, task = context.options, context.task
        if isinstance(task, ImageTask) and options.features is None and options.reference is None:
            return task_image_scorer(task)
        network = feature_network(options, task)
        return cls(network, feature_reference(context, network))

    @classmethod
    def check(cls, context: ScorerContext) -> None:
        """Network and reference, without the features of the reference images."""
        network = feature_network(context.options, context.task)
        stored = named_statistics(context)
        if stored is not None:
            stored.check_network(network)

    def instrument(self) -> Instrument:
        width = int(self.reference.moments.mean.shape[0])
        return Instrument(
            name=self.network.name,
            kind="features",
            digest=self.network.digest,
            reference=self.reference.name,
            reference_n=self.reference.count,
            reference_digest=self.reference.digest,
            detail={"features": width, "neighbours": NEIGHBOURS, "subsets": [SUBSETS, SUBSET_ROWS], **self.detail},
        )

    def prepare(self, sampling: CellSampling | None) -> None:
        self.sampling = sampling

    def score(self, x: Tensor, decoded: Any) -> Scores:
        if not isinstance(decoded, np.ndarray) or decoded.ndim < 3:
            raise UserError("Image metrics need images.", "Use --judge for text.")
        features, probabilities = self.network.embed(decoded)
        out = {"features": features.astype(np.float32)}
        if probabilities is not None:
            out["probabilities"] = probabilities
        return out

    def summarise(self, parts: ScoreParts) -> dict[str, Figure]:
        sums = _Accumulators(parts)
        by_subsets = self._by_subsets(parts, sums.splits > 1)
        out = {"frechet": self._frechet(sums), "kid": by_subsets.pop("kid")}
        if sums.classes:
            scores = [one.score for one in sums.classes.values()]
            spread = f", their standard deviation {np.std(scores, ddof=1):.3g}" if len(scores) > 1 else ""
            interval = of_splits(float(np.mean(scores)), scores)
            out["is"] = figure_of(interval, "higher", note=f"mean over {len(scores)} splits{spread}")
        return out | by_subsets | self._right_class(parts)

    def _right_class(self, parts: ScoreParts) -> dict[str, Figure]:
        """The share of labelled samples that a toy task's classifier assigns to the requested class."""
        if self.sampling is None or not isinstance(self.network, ClassifierFeatures):
            return {}
        label = labels_of(self.sampling.model, self.sampling.labels, 0, parts.n)
        if label is None:
            return {}
        right = parts.column("probabilities").argmax(-1) == np.array(label)
        return {"right_class": figure_of(of_mean(right.astype(np.float64)), "higher")}

    def _frechet(self, sums: _Accumulators) -> Figure:
        value = frechet(sums.whole, self.reference.moments)
        splits = [frechet(m, self.reference.moments) for m in sums.moments.values() if m.count > 1]
        width = len(sums.whole.mean)
        note = ""
        if sums.whole.count < MIN_SAMPLES_PER_FEATURE * width:
            note = f"biased upwards: {sums.whole.count} samples for {width} features"
        return figure_of(of_splits(value, splits, scaling_bias=True), "lower", note=note)

    def _by_subsets(self, parts: ScoreParts, spread: bool) -> dict[str, Figure]:
        """KID, precision and recall: of one subset, or the means over all of them."""
        found: list[dict[str, Interval]] = []
        for rows in sample_subsets((scores["features"] for _, scores in parts), parts.n):
            pairs, real = self._real_pairs(len(found)), reference_subset(self.reference.features, len(found))
            found.append(_subset_figures(rows, real, pairs, spread and parts.n < SUBSETS * len(rows)))
        better = {"kid": "lower", "precision": "higher", "recall": "higher"}
        if len(found) == 1:
            whole = len(rows) == parts.n and len(real) == self.reference.count
            sides = f"{len(rows)} of {parts.n} samples, {len(real)} of {self.reference.count} reference images"
            return {name: figure_of(one, better[name], note="" if whole else sides) for name, one in found[0].items()}
        note = f"mean over {len(found)} subsets of {len(rows)} samples and {len(real)} reference images"
        means = {name: of_subsets([one[name].value for one in found]) for name in found[0]}
        return {name: figure_of(mean, better[name], note=note) for name, mean in means.items()}


def _subset_figures(rows: np.ndarray, real: np.ndarray, alone: float, spread: bool) -> dict[str, Interval]:
    """KID, precision and recall of samples `(n, F)` against real images `(m, F)`; with `spread`, their intervals."""
    groups = [g for g in np.array_split(rows, SPLITS) if len(g) > 1] if spread else []
    kid, *parts = (kernel_distance(one, real, alone) for one in (rows, *groups))
    out = {"kid": of_splits(kid, parts)}
    if len(rows) <= NEIGHBOURS:
        return out
    inside, reached = precision_recall(rows, real)
    enough = spread and len(rows) >= 2 * (NEIGHBOURS + 1)
    pairs = half_recalls(rows, real, halvings(len(rows))) if enough else np.zeros((0, 2))
    return out | {"precision": of_mean(inside), "recall": of_halves(float(reached.mean()), pairs)}


class _Accumulators:
    """One pass over the parts: moments and class statistics of each consecutive split."""

    def __init__(self, parts: ScoreParts) -> None:
        self.splits = SPLITS if parts.n >= max(MIN_SAMPLES, 2 * SPLITS) else 1
        self.moments: dict[int, FeatureMoments] = {}
        self.classes: dict[int, ClassStatistics] = {}
        for first, scores in parts:
            features = scores["features"]
            owner = np.array([split_of(first + row, parts.n, self.splits) for row in range(len(features))])
            for split in np.unique(owner):
                moments = FeatureMoments.of(features[owner == split])
                self.moments[split] = self.moments[split] + moments if split in self.moments else moments
                if "probabilities" in scores:
                    classes = ClassStatistics.of(scores["probabilities"][owner == split])
                    self.classes[split] = self.classes[split] + classes if split in self.classes else classes
        self.whole = reduce(add, self.moments.values())


def task_features(task: ImageTask) -> ClassifierFeatures:
    """A task's classifier as a feature network."""
    return ClassifierFeatures(task.classifier, task.classifier_name)


@lru_cache(maxsize=4)
def task_image_scorer(task: ImageTask) -> ImageScorer:
    """A task's own scorer, with the Fréchet distance of real training images in its detail."""
    network = task_features(task)
    reference = _held_out_reference(task, network)
    real = task.data.train[:ANCHOR_SAMPLES]
    features, _ = network.embed(task.codec.decode(real))
    anchor = frechet(FeatureMoments.of(features), reference.moments)
    return ImageScorer(network, reference, {"real_frechet": round(anchor, 4), "real_n": len(real)})


def _held_out_reference(task: ToyTask, network: FeatureNetwork) -> FeatureReference:
    x = task.data.held_out[:TASK_REFERENCE]
    batches = (task.codec.decode(x[i : i + DECODED_AT_ONCE]) for i in range(0, len(x), DECODED_AT_ONCE))
    return make_reference(f"{task.name}, held-out part", network, batches, task.name)


def feature_network(options: ScorerOptions, task: ToyTask | None) -> FeatureNetwork:
    """The named feature network, else the task's."""
    if options.features is not None:
        return ScriptedFeatures(options.features, options.device, feature_input=options.feature_input)
    if isinstance(task, ImageTask):
        return task_features(task)
    raise UserError(
        "Image metrics of this model need a feature network.",
        "Name a TorchScript Inception with --features and real images with --reference.",
    )


def feature_reference(context: ScorerContext, network: FeatureNetwork) -> FeatureReference:
    """The named reference, images or statistics; else the features of the task's held-out part."""
    found, path = named_statistics(context), context.options.reference
    if path is None:
        assert context.task is not None
        return _held_out_reference(context.task, network)
    if found is None:
        source = f"{path.name} {identity(files=stamp(files_of(path)))}"
        cache = context.out / f"reference-{network.digest}.npz"
        found = cached_reference(cache, path.name, network, image_batches(path), source)
    if found.count < context.n:
        raise UserError(
            f"The reference '{found.name}' has {found.count} images, fewer than the {context.n} samples.",
            f"Draw {found.count} samples or use a larger reference.",
        )
    return found


def named_statistics(context: ScorerContext) -> FeatureReference | None:
    """The named reference if it is a file of statistics; images of another size than the samples are rejected."""
    path, size = context.options.reference, context.sample_size()
    if path is None:
        if context.task is None:
            raise UserError("Image metrics need real images to compare with.", "Name them with --reference.")
        return None
    if path.suffix == ".npz" and _is_statistics(path):
        found = FeatureReference.load(path)
        require_size(path.name, found.size or size, size)
        return found
    if not path.exists():
        raise UserError(f"There is no reference {path}.", "Check the path.")
    require_size(path.name, next(image_batches(path)).shape[1:], size)
    return None


def _is_statistics(path: Path) -> bool:
    with ArrayArchive(path) as file:
        return "provenance" in file.names
