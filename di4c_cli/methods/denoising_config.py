"""The section `method` of pretraining recipes. This module does not import torch."""

from __future__ import annotations

from typing import ClassVar, Literal

from pydantic import Field

from di4c_cli.methods.config import MethodConfig, TimeConfig


class DenoisingConfig(MethodConfig):
    """The usual training of a diffusion model: cross-entropy of x0 at the unknown positions of x_t."""

    implementation: ClassVar[str] = "di4c_cli.methods.denoising:Denoising"
    live_metrics: ClassVar[tuple[str, ...]] = ("loss", "held_out")
    narrow_metrics: ClassVar[tuple[str, ...]] = ("loss", "held_out")
    needs_teacher: ClassVar[bool] = False

    name: Literal["denoising"] = Field("denoising", description="the training method")
    time: TimeConfig = Field(default_factory=TimeConfig, description="distribution of t")

    @property
    def predictions_per_sample(self) -> int:
        return 1
