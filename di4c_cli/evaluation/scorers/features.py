"""Image figures from features: Fréchet distance, KID, inception score, precision and recall."""

from __future__ import annotations

from functools import lru_cache, reduce
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
from di4c_cli.evaluation.scorers.base import Scorer, ScorerContext, figure_of, register_scorer
from di4c_cli.foreign.arrays import ArrayArchive
from di4c_cli.metric.feature_scores import ClassStatistics, FeatureMoments, frechet, kernel_distance
from di4c_cli.metric.features import ClassifierFeatures, FeatureNetwork, ScriptedFeatures
from di4c_cli.metric.interval import MIN_SAMPLES, SPLITS, halvings, of_halves, of_mean, of_splits, split_of
from di4c_cli.metric.neighbours import NEIGHBOURS, half_recalls, precision_recall
from di4c_cli.metric.reference import MAX_FEATURE_ROWS, FeatureReference, cached_reference, make_reference, require_size
from di4c_cli.tasks.base import ImageTask, ToyTask

MIN_SAMPLES_PER_FEATURE = 20
"""With fewer samples per feature the bias of the Fréchet distance is visible and the figure has a note."""
TASK_REFERENCE = 2000
"""Held-out images of a toy task in its reference; decoding more of tiny-vq takes longer than sampling."""
ANCHOR_SAMPLES = 1000
"""Training images that show the figure of real data."""
DECODED_AT_ONCE = 500


@register_scorer("features")
class ImageScorer(Scorer):
    """Features of generated images against a reference."""

    main = "frechet"

    def __init__(
        self, network: FeatureNetwork, reference: FeatureReference, detail: dict[str, Any] | None = None
    ) -> None:
        reference.check_network(network)
        self.network, self.reference, self.detail = network, reference, detail or {}

    @classmethod
    def create(cls, context: ScorerContext) -> ImageScorer:
        """The named network and reference, else those of the toy task."""
        options, task = context.options, context.task
        if isinstance(task, ImageTask) and options.features is None and options.reference is None:
            return task_image_scorer(task)
        network = feature_network(options, task)
        return cls(network, feature_reference(context, network))

    def instrument(self) -> Instrument:
        width = int(self.reference.moments.mean.shape[0])
        return Instrument(
            name=self.network.name,
            kind="features",
            digest=self.network.digest,
            reference=self.reference.name,
            reference_n=self.reference.count,
            reference_digest=self.reference.digest,
            detail={"features": width, "neighbours": NEIGHBOURS, "kept": MAX_FEATURE_ROWS, **self.detail},
        )

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
        out = {"frechet": self._frechet(sums), "kid": self._kid(sums)}
        if sums.classes:
            scores = [one.score for one in sums.classes.values()]
            interval = of_splits(float(np.mean(scores)), scores)
            out["is"] = figure_of(interval, "higher", note=f"mean over {len(scores)} splits")
        if len(sums.kept) > NEIGHBOURS:
            out |= self._manifold(sums)
        return out

    def _frechet(self, sums: _Accumulators) -> Figure:
        value = frechet(sums.whole, self.reference.moments)
        splits = [frechet(m, self.reference.moments) for m in sums.moments.values() if m.count > 1]
        width = len(sums.whole.mean)
        note = ""
        if sums.whole.count < MIN_SAMPLES_PER_FEATURE * width:
            note = f"biased upwards: {sums.whole.count} samples for {width} features"
        return figure_of(of_splits(value, splits, scaling_bias=True), "lower", note=note)

    def _kid(self, sums: _Accumulators) -> Figure:
        reference = self.reference.features
        groups = [g for g in np.array_split(sums.kept, sums.splits) if len(g) > 1]
        spread = [kernel_distance(g, reference) for g in groups] if sums.splits > 1 else []
        return figure_of(of_splits(kernel_distance(sums.kept, reference), spread), "lower", note=_kept_note(sums))

    def _manifold(self, sums: _Accumulators) -> dict[str, Figure]:
        reference = self.reference.features
        inside, reached = precision_recall(sums.kept, reference)
        enough = sums.splits > 1 and len(sums.kept) >= 2 * (NEIGHBOURS + 1)
        pairs = half_recalls(sums.kept, reference, halvings(len(sums.kept))) if enough else np.zeros((0, 2))
        return {
            "precision": figure_of(of_mean(inside), "higher", note=_kept_note(sums)),
            "recall": figure_of(of_halves(float(reached.mean()), pairs), "higher", note=_kept_note(sums)),
        }


def _kept_note(sums: _Accumulators) -> str:
    total = sums.whole.count
    return f"on the first {len(sums.kept)} of {total} samples" if len(sums.kept) < total else ""


class _Accumulators:
    """One pass over the parts: moments and class statistics of each consecutive split, and the first rows."""

    def __init__(self, parts: ScoreParts) -> None:
        self.splits = SPLITS if parts.n >= max(MIN_SAMPLES, 2 * SPLITS) else 1
        self.moments: dict[int, FeatureMoments] = {}
        self.classes: dict[int, ClassStatistics] = {}
        kept: list[np.ndarray] = []
        room = MAX_FEATURE_ROWS
        for first, scores in parts:
            features = scores["features"]
            owner = np.array([split_of(first + row, parts.n, self.splits) for row in range(len(features))])
            for split in np.unique(owner):
                moments = FeatureMoments.of(features[owner == split])
                self.moments[split] = self.moments[split] + moments if split in self.moments else moments
                if "probabilities" in scores:
                    classes = ClassStatistics.of(scores["probabilities"][owner == split])
                    self.classes[split] = self.classes[split] + classes if split in self.classes else classes
            kept.append(features[:room])
            room -= len(kept[-1])
        self.kept = np.concatenate(kept)
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
    path, size = context.options.reference, context.sample_size()
    if path is None:
        if context.task is None:
            raise UserError("Image metrics need real images to compare with.", "Name them with --reference.")
        return _held_out_reference(context.task, network)
    if path.suffix == ".npz" and _is_statistics(path):
        found = FeatureReference.load(path)
        require_size(path.name, found.size or size, size)
    else:
        if not path.exists():
            raise UserError(f"There is no reference {path}.", "Check the path.")
        require_size(path.name, next(image_batches(path)).shape[1:], size)
        source = f"{path.name} {identity(files=stamp(files_of(path)))}"
        cache = context.out / f"reference-{network.digest}.npz"
        found = cached_reference(cache, path.name, network, image_batches(path), source)
    if found.count < context.n:
        raise UserError(
            f"The reference '{found.name}' has {found.count} images, fewer than the {context.n} samples.",
            f"Use -n {found.count} or a larger reference.",
        )
    return found


def _is_statistics(path: Path) -> bool:
    with ArrayArchive(path) as file:
        return "provenance" in file.names
