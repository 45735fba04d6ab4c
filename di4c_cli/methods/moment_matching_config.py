"""The section `method: {name: moment_matching}`. This module does not import torch."""

from __future__ import annotations

from typing import TYPE_CHECKING, Annotated, ClassVar, Literal

from pydantic import Field

from di4c_cli.methods.config import MethodConfig
from di4c_cli.schema import MAX_STEPS

if TYPE_CHECKING:
    from di4c_cli.latent.config import LatentConfig


class MomentMatchingConfig(MethodConfig):
    """The student learns on its own samples, against an auxiliary network that predicts them."""

    implementation: ClassVar[str] = "di4c_cli.methods.moment_matching:MomentMatching"
    live_metrics: ClassVar[tuple[str, ...]] = ("loss", "gap", "auxiliary", "agreement", "agreement_data")
    narrow_metrics: ClassVar[tuple[str, ...]] = ("loss", "gap")
    pool_without_data: ClassVar[bool] = True
    card: ClassVar[str] = "moment matching on its own samples, against an auxiliary network"

    name: Literal["moment_matching"] = Field("moment_matching", description="the training method")
    steps: list[Annotated[int, Field(ge=1, le=MAX_STEPS)]] = Field(
        [1, 2, 4, 8], min_length=1, description="numbers of sampling steps k, drawn per sample; t - s is at most 1/k"
    )
    one_share: float = Field(0.25, ge=0, le=1, description="probability that t is 1, where nothing is known")
    gap_power: float = Field(
        1.0, ge=1, le=10, description="t - s is u^gap_power / k, u uniform; above 1, x_s is near x_t more often"
    )
    on_grid: bool = Field(False, description="t is a multiple of 1/k, as in sampling; otherwise s is uniform in [0, 1]")
    teacher_weight: float = Field(
        1.0, ge=0, le=1e6, description="weight of the teacher's prediction in the auxiliary network's target"
    )
    auxiliary_lr: float | None = Field(None, gt=0, description="its constant learning rate; none: the student's")

    def loss_memory(self, gpu: int | None) -> tuple[int, int]:
        """One pass gives loss and gradient, so nothing is kept in between."""
        return super().loss_memory(gpu)[0], 0

    def check_latent(self, latent: LatentConfig, started: bool = False) -> None:
        if latent.prior == "learned" and not started:
            raise ValueError(
                "moment matching does not train a learned prior; start from a variational student, which has one "
                "(`start: {recipe: …}`), or --set latent.prior=standard"
            )

    def check_rounds(self, rounds: int) -> None:
        if rounds > 1:
            raise ValueError("moment matching needs a teacher without λ, so it has one round; remove --rounds")
