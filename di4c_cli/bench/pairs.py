"""The models that `bench-latency` times: a real teacher and student, or random weights of a published size."""

from __future__ import annotations

import math
from collections.abc import Callable
from dataclasses import dataclass, field
from typing import Any, Literal

import torch
from torch import Tensor

from di4c_cli import codec
from di4c_cli.build import build_denoiser
from di4c_cli.codec.vq import Vq
from di4c_cli.config import ModelConfig
from di4c_cli.denoiser import Denoiser
from di4c_cli.errors import UserError
from di4c_cli.latent.config import LatentConfig
from di4c_cli.model import Model
from di4c_cli.network.maskgit import MaskGit
from di4c_cli.network.vqgan import VQGAN
from di4c_cli.noise import Noise
from di4c_cli.sampler.config import SamplingConfig
from di4c_cli.sampler.loop import sample_batch
from di4c_cli.sampler.plan import SamplingPlan
from di4c_cli.teacher.architectures import architecture


@dataclass(frozen=True)
class Side:
    """One side of a measurement: samples batch number i, then decodes the ids to text or images, if it has a codec."""

    sample: Callable[[int], Any]
    decode: Callable[[Any], object] | None = None


@dataclass(frozen=True)
class PublishedShape:
    """An experiment of the paper's latency table (tab:latency); `title` is the first column of that table.

    `paper`: seconds per batch of teacher and student, mean and standard deviation, if the table has the experiment.
    """

    title: str
    network: dict[str, Any]
    process: dict[str, Any]
    codec: dict[str, Any]
    inject: str
    sampling: dict[str, Any]
    batch: int
    paper: dict[str, tuple[float, float]] = field(default_factory=dict)

    def config(self, kind: Literal["teacher", "student"]) -> ModelConfig:
        """The configuration of a teacher or a student of this size."""
        return ModelConfig(
            kind=kind,
            name=f"{self.title} {kind}, random weights",
            network=self.network,
            process=self.process,
            latent=LatentConfig.model_validate({"inject": self.inject}) if kind == "student" else None,
            labels=self.network.get("labels"),
            sampling=SamplingConfig.model_validate(self.sampling),
        )


def _shape(
    title: str,
    name: str,
    inject: str,
    sampling: dict[str, Any],
    batch: int,
    paper: dict[str, tuple[float, float]],
    **sizes: Any,
) -> PublishedShape:
    found = architecture(name)
    network = {**found.network, **sizes}
    return PublishedShape(title, network, found.process, found.codec, inject, sampling, batch, paper)


PIXEL_SAMPLING = {"steps": 10, "last": "argmax", "grid": "pixels"}
MASKGIT_SAMPLING = {"sampler": "confidence", "steps": 4, "guidance": 7.0}
CIFAR_SECONDS = {"teacher": (0.5515, 0.0024), "student": (0.5786, 0.0017)}
IMAGENET_SECONDS = {"teacher": (2.0741, 0.0035), "student": (2.0734, 0.0043)}
TEXT_SECONDS = {"teacher": (3.3409, 0.0417), "student": (3.4817, 0.0730)}
SHAPES = {
    "cifar10": _shape("CIFAR-10", "tauldr-unet", "film", PIXEL_SAMPLING, 50, CIFAR_SECONDS),
    "imagenet": _shape("ImageNet", "maskgit-256", "token", MASKGIT_SAMPLING, 64, IMAGENET_SECONDS),
    "openwebtext": _shape("OpenWebText", "dit-small", "token", {"steps": 16}, 16, TEXT_SECONDS),
    "text-256": _shape("text, D = 256", "dit-small", "token", {"steps": 8}, 4, {}, length=256),
}
PAPER_SHAPES = ["cifar10", "imagenet", "openwebtext"]
PUBLISHED_VQGAN: dict[str, Any] = {
    "channels": 128,
    "multipliers": [1, 1, 2, 2, 4],
    "blocks": 2,
    "attention_resolutions": [16],
    "z_channels": 256,
    "embed_dim": 256,
}
"""The image tokenizer of MaskGIT; its checkpoint is a file of its own. One code stands for 16×16 pixels."""


@dataclass
class ModelPair:
    """A teacher, a student, and the codec and the sampling settings that both use.

    `weights` says for each of the two where its weights come from; `paper` has the paper's row, if there is one.
    """

    title: str
    teacher: Denoiser
    student: Denoiser
    settings: SamplingPlan
    batch: int
    codec: codec.Codec
    weights: dict[str, str]
    note: str = ""
    paper: dict[str, Any] | None = None

    @property
    def length(self) -> int:
        """Positions of a sample, D."""
        return self.teacher.length

    @property
    def passes(self) -> int:
        """Forward passes of samples through both networks so far."""
        return self.teacher.passes + self.student.passes

    @property
    def labels(self) -> int | None:
        """Number of classes to draw labels from, if sampling is guided."""
        return self.teacher.labels if self.settings.guidance else None


def published_shape(name: str) -> PublishedShape:
    """The shape of that name."""
    if name not in SHAPES:
        raise UserError(f"Shape '{name}' is unknown.", f"Choose one of: {', '.join(SHAPES)}.")
    return SHAPES[name]


def _resolved(denoiser: Denoiser, defaults: SamplingConfig, **flags: Any) -> SamplingPlan:
    """The sampling plan; only guided samples have labels, and blocks have no hand-off."""
    labelled = denoiser.labels is not None and defaults.guidance != 0
    if flags["block"]:
        flags["hybrid"] = 0
    plan = SamplingPlan.resolve(denoiser, defaults, labelled, **flags)
    plan.blocks(denoiser.length)
    return plan


def random_pair(
    shape: PublishedShape, device: str, steps: int | None, batch: int | None, block: int | None = None
) -> ModelPair:
    """Teacher and student of a published size with random weights; on a CPU the default batch size is 1."""
    torch.manual_seed(0)
    teacher, student = (
        build_denoiser(shape.config(kind)).to(device).eval().requires_grad_(False) for kind in ("teacher", "student")
    )
    decoder, note = _decoder(codec.build(shape.codec), teacher)
    weights = dict.fromkeys(("teacher", "student"), "random")
    return _published_pair(shape, teacher, student, decoder, weights, [note], steps, batch, block)


def real_pair(
    teacher: Model,
    student: Model | None,
    steps: int | None,
    batch: int | None,
    shape: PublishedShape | None = None,
    block: int | None = None,
) -> ModelPair:
    """Real models; without a student, the teacher's network with random λ weights stands in.

    As a row of the paper's table (`shape`) they sample with the settings of that experiment, else with their own.
    """
    weights = {"teacher": teacher.name}
    if student is None:
        inject = "film" if teacher.config.network.get("type") == "unet" else "token"
        latent = teacher.config.latent or LatentConfig.model_validate({"inject": inject})
        denoiser = build_denoiser(teacher.config.model_copy(update={"kind": "student", "latent": latent}))
        denoiser.network.load_state_dict(teacher.denoiser.network.state_dict(), strict=False)
        denoiser = denoiser.to(teacher.denoiser.device).eval().requires_grad_(False)
        weights["student"], defaults = f"{teacher.name}, random λ weights", teacher.config.sampling
    else:
        denoiser, weights["student"], defaults = student.denoiser, student.name, student.config.sampling
    length = denoiser.length
    if length != teacher.denoiser.length or denoiser.process.config != teacher.denoiser.process.config:
        raise UserError("Teacher and student are of different kinds.", "Use the student's own teacher.")
    if shape is not None:
        decoder, note = _decoder(teacher.codec, denoiser)
        return _published_pair(shape, teacher.denoiser, denoiser, decoder, weights, [note], steps, batch, block)
    settings = _resolved(denoiser, defaults, steps=steps, block=block)
    size = batch or max(1, min(64, 16384 // length))
    return ModelPair(teacher.name, teacher.denoiser, denoiser, settings, size, teacher.codec, weights)


def _published_pair(
    shape: PublishedShape,
    teacher: Denoiser,
    student: Denoiser,
    decoder: codec.Codec,
    weights: dict[str, str],
    notes: list[str],
    steps: int | None,
    batch: int | None,
    block: int | None,
) -> ModelPair:
    """A row of the paper's table; its seconds are given where the number of steps is the paper's."""
    size = batch or (shape.batch if teacher.device.type != "cpu" else 1)
    if size != shape.batch:
        notes = [*notes, f"batch {size} instead of {shape.batch}"]
    settings = _resolved(student, SamplingConfig.model_validate(shape.sampling), steps=steps, block=block)
    paper = None
    if shape.paper and block is None and settings.steps == shape.sampling["steps"]:
        paper = {"table": "tab:latency", "batch": shape.batch, **shape.paper}
    note = "; ".join(filter(None, notes))
    return ModelPair(shape.title, teacher, student, settings, size, decoder, weights, note, paper)


def _decoder(found: codec.Codec, model: Denoiser) -> tuple[codec.Codec, str]:
    """The codec on the model's device, and a note; without its VQGAN, MaskGIT gets one of the published size."""
    side = math.isqrt(model.length)
    if found.kind != "none" or not isinstance(model.network, MaskGit) or side**2 != model.length:
        return found.to(model.device), ""
    settings = {**PUBLISHED_VQGAN, "codes": model.symbols, "resolution": 16 * side}
    tensors = VQGAN(**settings).state_dict()
    return Vq(tensors, settings).to(model.device), "VQGAN of the published size with random weights"


def sampling_side(pair: ModelPair, model: Denoiser) -> Side:
    """Sampling by the teacher or the student of a pair, and decoding."""

    def sample(i: int) -> Tensor:
        noise = Noise(0, range(i * pair.batch, (i + 1) * pair.batch), device=model.device)
        label = None
        if pair.labels is not None:
            label = (noise.at("bench").uniform("label") * pair.labels).long()
        helper = pair.teacher if pair.settings.hybrid else None
        return sample_batch(model, pair.settings, noise, label, teacher=helper)

    return Side(sample, pair.codec.decode)
