"""What a model cannot do, refused before the first step in one sentence."""

from __future__ import annotations

from torch import Tensor

from di4c_cli.denoiser import Denoiser
from di4c_cli.errors import UserError
from di4c_cli.process import Masked
from di4c_cli.sampler.settings import Settings


def check(
    denoiser: Denoiser,
    settings: Settings,
    batch: int,
    label: Tensor | None,
    given: Tensor | None,
    length: int,
    teacher: Denoiser | None,
) -> None:
    """Raise `UserError` unless this model can sample `batch` sequences of `length` this way."""
    _check_sampler(denoiser, settings)
    _check_labels(denoiser, settings, batch, label)
    if given is not None:
        if given.shape != (batch, length):
            raise UserError(
                f"Given symbols have shape {tuple(given.shape)}, not {(batch, length)}.",
                "Give one row per sample, -1 where a position is free.",
            )
        if int(given.max()) >= denoiser.symbols or int(given.min()) < -1:
            raise UserError(f"A given symbol is outside 0 to {denoiser.symbols - 1}.", "Check its codes.")
    if settings.hybrid:
        if teacher is None:
            raise UserError("A hybrid needs the teacher.", "Name it with --teacher, or use --hybrid 0.")
        if teacher.process.config != denoiser.process.config:
            raise UserError("Teacher and student have different processes.", "Use its own teacher.")


def _check_sampler(denoiser: Denoiser, settings: Settings) -> None:
    masked = isinstance(denoiser.process, Masked)
    if settings.sampler == "confidence" and not masked:
        raise UserError("The confidence sampler needs a masked process.", "Use --sampler analytical.")
    if settings.sampler == "tau-leaping" and masked:
        raise UserError("τ-leaping needs a Gaussian or uniform process.", "Use --sampler analytical.")
    if settings.corrector and masked:
        raise UserError("Corrector steps need a Gaussian or uniform process.", "Use --corrector 0.")
    if settings.dtype == "float32" and (settings.corrector or settings.sampler == "tau-leaping"):
        raise UserError("Poisson jumps are drawn in float64 only.", "Leave --sample-dtype out.")


def _check_labels(denoiser: Denoiser, settings: Settings, batch: int, label: Tensor | None) -> None:
    if settings.guidance and not denoiser.labels:
        raise UserError("Guidance needs a model with class labels.", "Leave --guidance out.")
    if settings.guidance and label is None:
        raise UserError("Guidance needs a class to guide to.", "Add --label, or leave --guidance out.")
    if label is None:
        return
    if not denoiser.labels:
        raise UserError("This model has no class labels.", "Leave --label out.")
    if label.shape != (batch,):
        raise UserError(f"{len(label)} labels do not fit {batch} samples.", "Give one, or one per sample.")
    low, high = int(label.min()), int(label.max())
    if low < -1 or high >= denoiser.labels:
        wrong = low if low < -1 else high
        raise UserError(f"Label {wrong} is out of range.", f"Labels go from 0 to {denoiser.labels - 1}.")
