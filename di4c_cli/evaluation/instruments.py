"""Which instrument measures which model: the embedded worlds have theirs, everything else names a file."""

from __future__ import annotations

import zipfile
from dataclasses import dataclass
from functools import lru_cache
from pathlib import Path

import numpy as np
import torch

from di4c_cli.codec.text import Text
from di4c_cli.data.cache import stamp
from di4c_cli.data.embedded import PIXEL_LEVELS, load_world, speech_lines
from di4c_cli.errors import UserError
from di4c_cli.evaluation.enumerated import ExactScorer
from di4c_cli.evaluation.images import ImageScorer
from di4c_cli.evaluation.judged import JudgeScorer
from di4c_cli.evaluation.mauved import MauveScorer
from di4c_cli.evaluation.parts import identity
from di4c_cli.evaluation.plan import Plan
from di4c_cli.evaluation.scorer import Scorer
from di4c_cli.evaluation.stored import files_of, image_batches, read_array, read_texts
from di4c_cli.evaluation.text import NgramScorer
from di4c_cli.evaluation.world import REFERENCE, classifier_file, text_judge, world_classifier, world_codec
from di4c_cli.metric.exact import enumerable
from di4c_cli.metric.features import ClassifierFeatures, FeatureNetwork, ScriptedFeatures
from di4c_cli.metric.frechet import Moments, frechet
from di4c_cli.metric.judge import load_judge
from di4c_cli.metric.reference import Reference, cached_reference, make_reference, require_size
from di4c_cli.model import Model

ASSETS = {"fashion-vqgan.safetensors": "tiny-vq", "text-units.json": "tiny-text"}
REAL = 1000
"""Training images that show what real data scores."""
JUDGE = "gpt2-large"
"""The judge of published generative perplexities."""


@dataclass(frozen=True)
class Tools:
    """What the user named: a judge, a feature network, a reference."""

    judge: str | None = None
    features: Path | None = None
    reference: Path | None = None
    device: str = "cpu"
    fed: str = "bytes"


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
    """With the score of real training images, which no model can be expected to beat, as an anchor."""
    network, data, decoder = world_features(world), load_world(world), world_codec(world)
    held_out = data.held_out[:REFERENCE]
    batches = (decoder.decode(held_out[i : i + 500]) for i in range(0, len(held_out), 500))
    made = make_reference(f"{world}, held-out part", network, batches, world)
    real = data.train[:REAL]
    anchor = frechet(Moments.of(network.embed(decoder.decode(real))[0]), made.moments)
    return ImageScorer(network, made, {"real_frechet": round(anchor, 4), "real_n": len(real)})


def world_features(world: str) -> ClassifierFeatures:
    """A world's classifier as a feature network."""
    return ClassifierFeatures(world_classifier(world), classifier_file(world)[0].removesuffix(".safetensors"))


@lru_cache(maxsize=1)
def _text_scorer(prompt: int = 0, group: int = 0) -> NgramScorer:
    """With the judge's opinion of real held-out text as an anchor, in windows as long as the samples."""
    decoder = world_codec("tiny-text")
    real = decoder.decode(load_world("tiny-text").held_out[:1000])
    judge = text_judge()
    anchor = float(np.mean(judge.bits_per_character(real)))
    fitted_to = f"{len(speech_lines()[0])} training speeches of tiny-text"
    return NgramScorer(judge, fitted_to, round(anchor, 4), decoder, prompt, group)


def choose(model: Model, world: str, plan: Plan, n: int, tools: Tools, out: Path) -> list[Scorer]:
    """The scorers for a plan: those the user named, else the world's own."""
    if plan.kind == "samples":
        return []
    if isinstance(model.codec, Text):
        return [_text(model.codec, world, plan, tools)]
    if tools.judge is not None:
        raise UserError(
            "A judge reads text, but this model makes images.", "Use --features instead of --judge."
        )
    if model.codec.kind == "none":
        return [_exact(model, tools)]
    if world and tools.features is None and tools.reference is None:
        return [world_scorer(world)]
    network = features(tools, world)
    blank = model.decode(torch.zeros(1, model.denoiser.length, dtype=torch.long))
    return [ImageScorer(network, reference(tools, network, world, n, out, blank.shape[1:]))]


def _text(codec: Text, world: str, plan: Plan, tools: Tools) -> Scorer:
    prompt, group = (plan.prompts.given, plan.prompts.times) if plan.prompts else (0, 0)
    if world == "tiny-text" and tools.judge is None and plan.kind != "mauve":
        return _text_scorer(prompt, group)
    if plan.kind == "mauve" and tools.reference is None:
        raise UserError("MAUVE compares with real texts.", "Name them with --reference FILE.txt.")
    judge = load_judge(tools.judge or JUDGE, tools.device)
    if plan.kind == "mauve":
        assert tools.reference is not None
        return MauveScorer(judge, read_texts(tools.reference), tools.reference.name)
    return JudgeScorer(judge, judge.same_tokens(codec.tokenizer), prompt, group)


def features(tools: Tools, world: str) -> FeatureNetwork:
    """The named feature network, else the world's."""
    if tools.features is not None:
        return ScriptedFeatures(tools.features, tools.device, fed=tools.fed)
    if world:
        return world_features(world)
    raise UserError(
        "Image metrics of this model need a feature network.",
        "Name a TorchScript Inception with --features and real images with --reference.",
    )


def reference(
    tools: Tools, network: FeatureNetwork, world: str, n: int, out: Path, size: tuple[int, ...]
) -> Reference:
    """The named reference, images or statistics; else the world's held-out part seen by this network.

    `size` is that of the samples; the first images tell theirs before all of them are looked at.
    """
    path = tools.reference
    if path is None:
        if not world:
            raise UserError("Image metrics need real images to compare with.", "Name them with --reference.")
        held_out, decoder = load_world(world).held_out[:REFERENCE], world_codec(world)
        return make_reference(f"{world}, held-out part", network, [decoder.decode(held_out)], world)
    if path.suffix == ".npz" and _is_statistics(path):
        found = Reference.load(path)
    else:
        if not path.exists():
            raise UserError(f"There is no reference {path}.", "Check the path.")
        require_size(path.name, next(image_batches(path)).shape[1:], size)
        source = f"{path.name} {identity(files=stamp(files_of(path)))}"
        cache = out / f"reference-{network.digest}.npz"
        found = cached_reference(cache, path.name, network, image_batches(path), source)
    found.check_network(network)
    found.require_size(size)
    found.require(n)
    return found


def _is_statistics(path: Path) -> bool:
    try:
        with np.load(path, allow_pickle=False) as file:
            return "provenance" in file.files
    except (OSError, ValueError, EOFError, zipfile.BadZipFile):
        return False


def _exact(model: Model, tools: Tools) -> Scorer:
    if not enumerable(model.denoiser) or tools.reference is None:
        raise UserError(
            "Nothing can be measured on a model without a codec, unless its space is small enough to list.",
            "Name data as --reference FILE.npy, an array (n, D) of ids.",
        )
    data = torch.from_numpy(np.array(read_array(tools.reference), dtype=np.int64))
    return ExactScorer(data, model.denoiser.symbols, tools.reference.name)
