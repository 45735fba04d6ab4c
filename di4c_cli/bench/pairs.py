"""The models that `bench-latency` times: published sizes with random weights, or a real teacher and student."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any, Literal

import torch

from di4c_cli.build import build_denoiser
from di4c_cli.config import ModelConfig
from di4c_cli.denoiser import Denoiser
from di4c_cli.errors import UserError
from di4c_cli.latent.config import LatentConfig
from di4c_cli.model import Model
from di4c_cli.noise import Noise
from di4c_cli.sampler.config import SamplingConfig
from di4c_cli.sampler.loop import sample_batch
from di4c_cli.sampler.plan import SamplingPlan
from di4c_cli.teacher.architectures import network_settings, process_settings

TimedRun = Callable[[int], object]
"""Samples batch number i."""


@dataclass(frozen=True)
class PublishedShape:
    """An experiment of the paper's latency table; `title` is the first column of that table."""

    title: str
    network: dict[str, Any]
    process: dict[str, Any]
    inject: str
    sampling: dict[str, Any]
    batch: int

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
    title: str, architecture: str, inject: str, sampling: dict[str, Any], batch: int, **sizes: Any
) -> PublishedShape:
    network, process = network_settings(architecture, **sizes), process_settings(architecture)
    return PublishedShape(title, network, process, inject, sampling, batch)


PIXEL_SAMPLING = {"steps": 10, "last": "argmax", "grid": "pixels"}
MASKGIT_SAMPLING = {"sampler": "confidence", "steps": 4, "guidance": 7.0}
SHAPES = {
    "cifar10": _shape("CIFAR-10", "tauldr-unet", "film", PIXEL_SAMPLING, 50),
    "imagenet": _shape("ImageNet", "maskgit-256", "token", MASKGIT_SAMPLING, 64),
    "openwebtext": _shape("OpenWebText", "dit-small", "token", {"steps": 16}, 16),
    "text-256": _shape("text, D = 256", "dit-small", "token", {"steps": 8}, 4, length=256),
}
PAPER_SHAPES = ["cifar10", "imagenet", "openwebtext"]


@dataclass
class ModelPair:
    """A teacher, a student and the sampling settings that both use."""

    title: str
    teacher: Denoiser
    student: Denoiser
    settings: SamplingPlan
    batch: int
    note: str = ""

    @property
    def length(self) -> int:
        """Positions of a sample, D."""
        return self.teacher.length

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
    """The sampling plan; only guided samples have labels."""
    labelled = denoiser.labels is not None and defaults.guidance != 0
    return SamplingPlan.resolve(denoiser, defaults, labelled, **flags)


def random_pair(shape: PublishedShape, device: str, steps: int | None, batch: int | None) -> ModelPair:
    """Teacher and student of a published size with random weights; on a CPU the default batch size is 1.

    The whole batch goes through the network at once. `di4c sample` divides it into tiles, so that the bits of a
    sample do not depend on the other samples of its batch.
    """
    torch.manual_seed(0)
    teacher, student = (
        build_denoiser(shape.config(kind)).to(device).eval().requires_grad_(False) for kind in ("teacher", "student")
    )
    size = batch or (shape.batch if device != "cpu" else 1)
    note = "random weights" if size == shape.batch else f"random weights; batch {size} instead of {shape.batch}"
    # every batch has the same size here, so the whole batch can be one tile
    tile = 1 if size == 1 else 0
    settings = _resolved(teacher, shape.config("student").sampling, steps=steps, tile=tile)
    return ModelPair(shape.title, teacher, student, settings, size, note)


def real_pair(teacher: Model, student: Model | None, steps: int | None, batch: int | None) -> ModelPair:
    """Real models; without a student, the teacher's network with random λ weights stands in."""
    note = ""
    if student is None:
        denoiser, note = _with_latent(teacher), "student: the teacher with random λ weights"
        defaults = teacher.config.sampling
    else:
        denoiser, defaults = student.denoiser, student.config.sampling
    length = denoiser.length
    if length != teacher.denoiser.length or denoiser.process.config != teacher.denoiser.process.config:
        raise UserError("Teacher and student are of different kinds.", "Use the student's own teacher.")
    settings = _resolved(denoiser, defaults, steps=steps)
    size = batch or max(1, min(64, 16384 // length))
    return ModelPair(teacher.name, teacher.denoiser, denoiser, settings, size, note)


def _with_latent(teacher: Model) -> Denoiser:
    """A student's network with a copy of the teacher's weights."""
    inject = "film" if teacher.config.network.get("type") == "unet" else "token"
    latent = teacher.config.latent or LatentConfig.model_validate({"inject": inject})
    student = build_denoiser(teacher.config.model_copy(update={"kind": "student", "latent": latent}))
    student.network.load_state_dict(teacher.denoiser.network.state_dict(), strict=False)
    return student.to(teacher.denoiser.device).eval().requires_grad_(False)


def sampling_run(pair: ModelPair, model: Denoiser) -> TimedRun:
    """Sampling by the teacher or the student of a pair."""

    def run(i: int) -> None:
        noise = Noise(0, range(i * pair.batch, (i + 1) * pair.batch), device=model.device)
        label = None
        if pair.labels is not None:
            label = (noise.at("bench").uniform("label") * pair.labels).long()
        helper = pair.teacher if pair.settings.hybrid else None
        sample_batch(model, pair.settings, noise, label, teacher=helper)

    return run
