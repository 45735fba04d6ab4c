"""Who is timed: named shapes of the paper with random weights, real models, and their rivals."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING, Any

from di4c_cli.config import ModelConfig, SamplingDefaults
from di4c_cli.errors import UserError
from di4c_cli.latent.config import LatentConfig
from di4c_cli.sampler.settings import Settings, resolve

if TYPE_CHECKING:
    from di4c_cli.denoiser import Denoiser
    from di4c_cli.model import Model


@dataclass(frozen=True)
class Shape:
    """An experiment of tab. latency; `title` is the table's first column."""

    title: str
    network: dict[str, Any]
    process: dict[str, Any]
    inject: str
    sampling: dict[str, Any]
    batch: int
    labels: int | None = None

    def config(self, kind: Any) -> ModelConfig:
        """A teacher's or student's configuration."""
        return ModelConfig(
            kind=kind,
            name=f"{self.title} {kind}, random weights",
            network=self.network,
            process=self.process,
            latent=LatentConfig.model_validate({"inject": self.inject}) if kind == "student" else None,
            labels=self.labels,
            sampling=SamplingDefaults.model_validate(self.sampling),
        )


def _dit(length: int) -> dict[str, Any]:
    sizes = {"width": 768, "depth": 12, "heads": 12, "cond_dim": 128}
    return {"type": "dit", "symbols": 50257, "length": length, **sizes}


_MASKGIT = {"type": "maskgit", "symbols": 1024, "length": 256, "width": 768, "depth": 24, "heads": 16}
_UNET = {"type": "unet", "symbols": 256, "shape": [3, 32, 32], "channels": 128, "multipliers": [1, 2, 2, 2]}

SHAPES: dict[str, Shape] = {
    "cifar10": Shape(
        "CIFAR-10",
        {**_UNET, "blocks": 2, "attention": [1], "time_dim": 128},
        {"type": "gaussian", "symbols": 256},
        "film",
        {"steps": 10, "last": "argmax", "grid": "pixels"},
        50,
    ),
    "imagenet": Shape(
        "ImageNet",
        {**_MASKGIT, "mlp": 3072, "labels": 1000},
        {"type": "masked", "symbols": 1024, "schedule": "arccos"},
        "token",
        {"sampler": "confidence", "steps": 4, "guidance": 7.0},
        64,
        1000,
    ),
    "openwebtext": Shape(
        "OpenWebText",
        _dit(1024),
        {"type": "masked", "symbols": 50257},
        "token",
        {"steps": 16},
        16,
    ),
    "text-256": Shape(
        "text, D = 256",
        _dit(256),
        {"type": "masked", "symbols": 50257},
        "token",
        {"steps": 8},
        4,
    ),
}


@dataclass
class Contest:
    """A teacher and a student with what both are asked to do."""

    title: str
    teacher: Denoiser
    student: Denoiser
    settings: Settings
    batch: int
    note: str = ""

    @property
    def length(self) -> int:
        return self.teacher.length

    @property
    def labels(self) -> int | None:
        """Classes to draw labels from, if the samples are guided."""
        return self.teacher.labels if self.settings.guidance else None


def guided(defaults: SamplingDefaults, labels: int | None) -> bool:
    """Whether the samples of a contest have labels: only guidance needs them."""
    return labels is not None and defaults.guidance != 0


def from_shape(name: str, device: str, steps: int | None, batch: int | None) -> Contest:
    """A named shape with random weights; on a CPU the batch is one unless asked for, and the note says so.

    The whole batch goes through the network at once. `di4c sample` cuts it into tiles, so that a sample's bits
    do not depend on its neighbours.
    """
    import torch

    from di4c_cli import student

    if name not in SHAPES:
        raise UserError(f"Shape '{name}' is unknown.", f"Choose one of: {', '.join(SHAPES)}.")
    shape = SHAPES[name]
    torch.manual_seed(0)
    pair = [student.build(shape.config(kind)).to(device).eval().requires_grad_(False) for kind in KINDS]
    size = batch or (shape.batch if device != "cpu" else 1)
    note = "random weights"
    if size != shape.batch:
        note += f"; batch {size} instead of {shape.batch}"
    defaults = shape.config("student").sampling
    settings = resolve(defaults, pair[0].length, steps, guided(defaults, shape.labels))
    # every batch has the same size here, so that it can be its own tile
    settings = replace(settings, tile=1 if size == 1 else 0)
    return Contest(shape.title, pair[0], pair[1], settings, size, note)


KINDS = ("teacher", "student")


def from_models(teacher: Model, student: Model | None, steps: int | None, batch: int | None) -> Contest:
    """Real models; a teacher alone meets a student of its size with random λ weights."""
    note = ""
    if student is None:
        pupil, note = _with_latent(teacher), "student: the teacher with random λ weights"
        defaults = teacher.config.sampling
    else:
        pupil, defaults = student.denoiser, student.config.sampling
    if pupil.length != teacher.denoiser.length or pupil.process.config != teacher.denoiser.process.config:
        raise UserError("Teacher and student are of different kinds.", "Use the student's own teacher.")
    length = pupil.length
    settings = resolve(defaults, length, steps, guided(defaults, teacher.denoiser.labels))
    size = batch or max(1, min(64, 16384 // length))
    return Contest(teacher.name, teacher.denoiser, pupil, settings, size, note)


def _with_latent(teacher: Model) -> Denoiser:
    """A student's network around copies of the teacher's weights."""
    from di4c_cli import student

    inject = "film" if teacher.config.network.get("type") == "unet" else "token"
    latent = teacher.config.latent or LatentConfig.model_validate({"inject": inject})
    pupil = student.build(teacher.config.model_copy(update={"kind": "student", "latent": latent}))
    pupil.network.load_state_dict(teacher.denoiser.network.state_dict(), strict=False)
    return pupil.to(teacher.denoiser.device).eval().requires_grad_(False)


Run = Callable[[int], object]
"""Draws batch number i."""


def runners(contest: Contest, compare: bool, seed: int = 0) -> dict[str, Run]:
    """Teacher and student; with `compare` also the body alone and the textbook sampler, on the teacher."""
    from di4c_cli.bench import textbook

    both = {"teacher": contest.teacher, "student": contest.student}
    sides = {name: _sampling(contest, model, seed) for name, model in both.items()}
    if compare:
        model, settings, batch = contest.teacher, contest.settings, contest.batch
        sides["body only"] = lambda i: textbook.body_only(model, settings, batch)
        sides["textbook"] = lambda i: textbook.sample(model, settings, batch, seed + i)
    return sides


def _sampling(contest: Contest, model: Denoiser, seed: int) -> Run:
    from di4c_cli.noise import Noise
    from di4c_cli.sampler.run import sample

    def run(i: int) -> None:
        noise = Noise(seed, range(i * contest.batch, (i + 1) * contest.batch), device=model.device)
        label = None
        if contest.labels is not None:
            label = (noise.at("bench").uniform("label") * contest.labels).long()
        helper = contest.teacher if contest.settings.hybrid else None
        sample(model, contest.settings, noise, label, teacher=helper)

    return run
