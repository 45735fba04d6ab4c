"""The section `method: {name: sdtt}`. This module does not import torch."""

from __future__ import annotations

from typing import TYPE_CHECKING, ClassVar, Literal

from pydantic import Field

from di4c_cli.methods.config import MethodConfig, TimeConfig

if TYPE_CHECKING:
    from di4c_cli.latent.config import LatentConfig


class SDTTConfig(MethodConfig):
    """Self-distillation through time: several steps of a masked teacher become one; the student has no λ."""

    implementation: ClassVar[str] = "di4c_cli.methods.sdtt:SDTT"
    live_metrics: ClassVar[tuple[str, ...]] = ("loss", "kl")
    narrow_metrics: ClassVar[tuple[str, ...]] = ("loss", "kl")
    pool_without_data: ClassVar[bool] = True
    card: ClassVar[str] = "self-distillation through time (SDTT): several steps of its teacher became one"

    name: Literal["sdtt"] = Field("sdtt", description="the training method")
    teacher_steps: int = Field(2, ge=2, le=64, description="the teacher's steps that become one")
    step: float = Field(
        1 / 1024,
        gt=0,
        le=1,
        description="the teacher's step in the first round; each round multiplies it by `teacher_steps`",
    )
    time: TimeConfig = Field(default_factory=lambda: TimeConfig(grid=1024), description="distribution of t")

    def loss_memory(self, gpu: int | None) -> tuple[int, int]:
        """One pass gives loss and gradient, so nothing is kept in between."""
        return super().loss_memory(gpu)[0], 0

    def check_rounds(self, rounds: int) -> None:
        if self.step * self.teacher_steps**rounds > 1:
            raise ValueError(
                f"after {rounds} rounds a step of the student would be longer than 1; use fewer rounds or a "
                "smaller method.step"
            )

    def resolve_latent(self, latent: LatentConfig) -> None:
        """A product model, as its teacher."""
