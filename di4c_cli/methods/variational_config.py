"""The section `method: {name: variational}`. This module does not import torch."""

from __future__ import annotations

from typing import TYPE_CHECKING, ClassVar, Literal

from pydantic import Field, model_validator

from di4c_cli.methods.config import MethodConfig, TimeConfig
from di4c_cli.schema import MAX_LATENTS, Section

if TYPE_CHECKING:
    from di4c_cli.latent.config import LatentConfig


class KLWeightConfig(Section):
    """KL annealing: β is the maximum of `start` and a line from 0 to 1 between two shares of the training."""

    start: float = Field(0.05, ge=0, le=1, description="β at the start of a round")
    anneal_from: float = Field(0.25, ge=0, le=1, description="share of the training at which the line starts")
    anneal_until: float = Field(0.6, ge=0, le=1, description="share of the training at which β reaches 1")

    @model_validator(mode="after")
    def _ordered(self) -> KLWeightConfig:
        if self.anneal_from > self.anneal_until:
            raise ValueError(f"anneal_from {self.anneal_from} is above anneal_until {self.anneal_until}")
        return self


class VariationalConfig(MethodConfig):
    """A variational bound on the mixture: encoder q(λ|x0, x_t), KL annealing, learned prior."""

    implementation: ClassVar[str] = "di4c_cli.methods.variational:Variational"
    live_metrics: ClassVar[tuple[str, ...]] = ("loss", "reconstruction", "kl", "prior_loss")
    narrow_metrics: ClassVar[tuple[str, ...]] = ("loss", "kl")
    needs_teacher: ClassVar[bool] = False
    pool_without_data: ClassVar[bool] = True
    card: ClassVar[str] = "a variational bound on the mixture: an encoder of λ, KL annealing and a learned prior of λ"

    name: Literal["variational"] = Field("variational", description="the training method")
    time: TimeConfig = Field(default_factory=TimeConfig, description="distribution of t")
    encoder_width: int = Field(256, ge=1, le=4096, description="hidden width of the encoder")
    iwae_samples: int = Field(
        1,
        ge=1,
        le=MAX_LATENTS,
        description="samples of the encoder per x0; more than one: the importance-weighted bound",
    )
    kl_weight: KLWeightConfig = Field(
        default_factory=KLWeightConfig, description="β, the weight of the KL term, over a round's training"
    )

    @property
    def predictions_per_sample(self) -> int:
        return self.iwae_samples

    def check_latent(self, latent: LatentConfig, started: bool = False) -> None:
        if latent.distribution != "normal" or latent.features == "sinusoid":
            raise ValueError(
                "the variational method needs latent.distribution: normal and latent.features: raw; "
                "--method di4c trains with any λ"
            )

    def resolve_latent(self, latent: LatentConfig) -> LatentConfig:
        """Raw features: the encoder moves λ by small amounts, which sinusoids would blur."""
        return latent.model_copy(update={"features": latent.features or "raw"})
