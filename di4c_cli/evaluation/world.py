"""Metrics of the embedded worlds in one call: samples in, figures out. No intervals and no streaming here."""

from __future__ import annotations

from functools import cached_property, lru_cache

import numpy as np
from torch import Tensor

from di4c_cli import codec, embedded, limits
from di4c_cli.data.embedded import PIXEL_LEVELS, load_world, speech_lines
from di4c_cli.errors import UserError
from di4c_cli.metric.classifier import Classifier, load_classifier
from di4c_cli.metric.diversity import distinct, unigram_entropy
from di4c_cli.metric.frechet import Moments, frechet
from di4c_cli.metric.inception_score import inception_score
from di4c_cli.metric.kid import kernel_distance
from di4c_cli.metric.manifold import precision_recall
from di4c_cli.metric.memorising import hamming, nearer_to_training
from di4c_cli.metric.ngram import CharacterModel
from di4c_cli.model import Model

REFERENCE = 2000
"""Held-out images used as reference; decoding more of tiny-vq would take longer than sampling."""
NEIGHBOURS = 500
"""Training items and held-out items among which a sample's nearest one is looked for."""
CLASSIFIERS = {"tiny-digits": ("digits", 8), "tiny-pixels": ("digits", 8), "tiny-vq": ("fashion", 28)}


def world_codec(world: str) -> codec.Codec:
    """The codec of a world's models."""
    if world in PIXEL_LEVELS:
        return codec.build({"type": "pixels", "shape": (1, 8, 8), "levels": PIXEL_LEVELS[world]})
    folder = embedded.model(world, "teacher")
    return codec.build(limits.read_config(folder).codec, folder)


def classifier_file(world: str) -> tuple[str, int]:
    """File name and image side of a world's classifier."""
    if world not in CLASSIFIERS:
        raise UserError(f"'{world}' has no image classifier.", f"Choose one of {', '.join(CLASSIFIERS)}.")
    name, size = CLASSIFIERS[world]
    return f"{name}-classifier.safetensors", size


def world_classifier(world: str) -> Classifier:
    """The classifier whose last hidden layer is the feature space of a world's image metrics."""
    name, size = classifier_file(world)
    return load_classifier(embedded.asset(name), size)


@lru_cache(maxsize=1)
def text_judge() -> CharacterModel:
    """The judge of tiny-text, fitted to the training speeches; takes about two seconds."""
    return CharacterModel(speech_lines()[0])


class WorldMetrics:
    """Figures of samples of one embedded world against its held-out data."""

    def __init__(
        self, world: str, decoder: codec.Codec | None = None, classifier: Classifier | None = None
    ) -> None:
        self.world = world
        self.codec = decoder or world_codec(world)
        self.text = world == "tiny-text"
        if not self.text:
            self.classifier = classifier or world_classifier(world)
            self.reference, _ = self.embed(load_world(world).held_out[:REFERENCE])
            self.moments = Moments.of(self.reference)

    def embed(self, x: Tensor) -> tuple[np.ndarray, np.ndarray]:
        """Ids `(n, D)` -> features `(n, F)`, class probabilities `(n, C)`."""
        return self.classifier.embed(self.codec.decode(x))

    def measure(self, x: Tensor) -> dict[str, float]:
        """All figures of samples `(n, D)`."""
        return self._measure_text(x) if self.text else self._measure_images(x)

    def leaning(self, x: Tensor) -> float:
        """Share of samples `(n, D)` nearer to a training item than to any held-out one: pixels, or words."""
        if self.text:
            return nearer_to_training(x.cpu().numpy(), *self.neighbours, hamming)
        return nearer_to_training(self._pixels(x), *self.neighbours)

    @cached_property
    def neighbours(self) -> tuple[np.ndarray, np.ndarray]:
        """Training items and held-out items, as `leaning` compares them."""
        world = load_world(self.world)
        spread = [items[:: max(1, len(items) // NEIGHBOURS)] for items in (world.train, world.held_out)]
        return tuple(x.numpy() if self.text else self._pixels(x) for x in spread)  # type: ignore[return-value]

    def _pixels(self, x: Tensor) -> np.ndarray:
        return np.asarray(self.codec.decode(x)).reshape(len(x), -1)

    def _measure_images(self, x: Tensor) -> dict[str, float]:
        features, probabilities = self.embed(x)
        precision, recall = precision_recall(features, self.reference)
        return {
            "frechet": frechet(Moments.of(features), self.moments),
            "kid": kernel_distance(features, self.reference),
            "is": inception_score(probabilities, 10)[0],
            "precision": precision,
            "recall": recall,
        }

    def _measure_text(self, x: Tensor) -> dict[str, float]:
        ids = x.cpu().numpy()
        return {
            "bits_per_char": float(text_judge().bits_per_character(self.codec.decode(x)).mean()),
            "entropy": float(unigram_entropy(ids).mean()),
            "distinct": float(distinct(ids, 2).mean()),
        }


def quality(world: str, model: Model, steps: int, n: int = 2000, seed: int = 0) -> dict[str, float]:
    """Draw `n` samples in `steps` steps, without labels, and measure them; `leaning`: to the training items."""
    x = model.sample(n, steps=steps, seed=seed)
    metrics = _metrics(world)
    return metrics.measure(x) | {"leaning": metrics.leaning(x)}


@lru_cache(maxsize=4)
def _metrics(world: str) -> WorldMetrics:
    """The reference is embedded once per process."""
    return WorldMetrics(world)
