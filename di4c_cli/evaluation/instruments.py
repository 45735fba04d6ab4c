"""Which instrument measures which model: the embedded worlds have theirs, everything else names a file."""

from __future__ import annotations

from functools import lru_cache

import numpy as np

from di4c_cli.data.embedded import PIXEL_LEVELS, load_world, speech_lines
from di4c_cli.evaluation.images import ImageScorer
from di4c_cli.evaluation.scorer import Scorer
from di4c_cli.evaluation.text import NgramScorer
from di4c_cli.evaluation.world import classifier_file, text_judge, world_classifier, world_codec
from di4c_cli.metric.features import ClassifierFeatures
from di4c_cli.metric.reference import make_reference
from di4c_cli.model import Model

ASSETS = {"fashion-vqgan.safetensors": "tiny-vq", "text-units.json": "tiny-text"}


def world_of(model: Model) -> str:
    """The embedded world whose samples a model makes, by its codec; empty for a model from outside."""
    codec = model.config.codec
    if codec.get("type") == "pixels" and tuple(codec["shape"]) == (1, 8, 8):
        return next((name for name, levels in PIXEL_LEVELS.items() if levels == codec["levels"]), "")
    return ASSETS.get(str(codec.get("asset", "")), "")


def world_scorer(world: str) -> Scorer:
    """The instrument of an embedded world."""
    return _text_scorer() if world == "tiny-text" else _image_scorer(world)


@lru_cache(maxsize=4)
def _image_scorer(world: str) -> ImageScorer:
    network = ClassifierFeatures(
        world_classifier(world), classifier_file(world)[0].removesuffix(".safetensors")
    )
    held_out, decoder = load_world(world).held_out, world_codec(world)
    batches = (decoder.decode(held_out[i : i + 500]) for i in range(0, len(held_out), 500))
    return ImageScorer(network, make_reference(f"{world}, held-out part", network, batches))


@lru_cache(maxsize=1)
def _text_scorer() -> NgramScorer:
    """With the judge's opinion of real held-out text as an anchor, in windows as long as the samples."""
    decoder = world_codec("tiny-text")
    real = decoder.decode(load_world("tiny-text").held_out[:1000])
    judge = text_judge()
    anchor = float(np.mean(judge.bits_per_character(real)))
    return NgramScorer(judge, f"{len(speech_lines()[0])} training speeches of tiny-text", round(anchor, 4))
