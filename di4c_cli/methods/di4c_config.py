"""The section `method: {name: di4c}`. This module does not import torch."""

from __future__ import annotations

from typing import TYPE_CHECKING, Annotated, ClassVar, Literal

from pydantic import Field, model_validator

from di4c_cli.methods.config import MethodConfig, RangeConfig, TimeConfig
from di4c_cli.schema import MAX_LATENTS, MAX_STEPS, Section

if TYPE_CHECKING:
    from di4c_cli.latent.config import LatentConfig

Weight = Annotated[float, Field(ge=0)]


class AlphaConfig(Section):
    """Weight α_t of the correlation term on data."""

    kind: Literal["zero", "const", "linear", "sigmoid"] = Field(
        "sigmoid", description="0, 1, t, or g(t) = 1 / (1 + exp(10 - 20 t))"
    )
    scale: float = Field(1.0, ge=0, description="factor in front of it")


class StepConfig(RangeConfig):
    """A range of step lengths Δt, drawn log-uniformly, so 0 is excluded."""

    low: float = Field(gt=0, le=1, description="smallest value")
    grows: bool = Field(
        False, description="rise from `low` to `high` over a round's training, instead of drawing in between"
    )


class DeltaConfig(RangeConfig):
    """Small times δ of the distillation term; δ = low with probability `at_low`, else uniform in the range."""

    at_low: float = Field(1.0, ge=0, le=1, description="probability of exactly `low`")


class SplitTimeConfig(TimeConfig):
    """Distribution of t; with branch `both`, t also stays above δ.low + Δt."""

    small_share: float | None = Field(
        None, ge=0, le=1, description="probability that t falls below δ (SDTT: 0.3); none: uniform"
    )
    corrupt_later: bool = Field(
        False,
        description="draw x_t with the mask share 0.999 (t + 1/grid), as the authors' SDTT code, which rounds t up "
        "twice; needs `grid` and a linear mask schedule",
    )

    @model_validator(mode="after")
    def _later_on_a_grid(self) -> SplitTimeConfig:
        if self.corrupt_later and self.grid is None:
            raise ValueError("corrupt_later needs a grid")
        return self


class Di4CConfig(MethodConfig):
    """The paper's loss: distil + consis + α_t corr + marginal (paper sections 3, A, F)."""

    implementation: ClassVar[str] = "di4c_cli.methods.di4c:Di4C"
    card: ClassVar[str] = "the method of *Distillation of Discrete Diffusion through Dimensional Correlations* (Di4C)"
    live_metrics: ClassVar[tuple[str, ...]] = ("loss", "distil", "consis", "corr", "marginal", "correlation_data")

    narrow_metrics: ClassVar[tuple[str, ...]] = ("loss", "correlation_data")

    name: Literal["di4c"] = Field("di4c", description="the training method")
    latents: int = Field(16, ge=1, le=MAX_LATENTS, description="L, λ draws per sample (M = N = L)")
    stratified: bool = Field(
        False, description="one λ from each of L equal parts of [0, 1); for λ of one uniform number"
    )
    branch: Literal["both", "split"] = Field(
        "split",
        description="`both`: distil at its own δ and consis at t (eq. loss-cifar10); `split`: t ≤ δ distils, "
        "larger t have the consistency term (eq. loss-sdtt; eq. loss-maskgit with δ = Δt)",
    )
    distil_weight: Weight | Literal["1/step"] = Field(1.0, description="`1/step` is 1/Δt (eq. loss-maskgit)")
    consis_weight: float = Field(1.0, ge=0, description="weight of the consistency term")
    marginal_weight: float = Field(1.0, ge=0, description="weight of the marginal term")
    control_variate: Literal["marginal", "convex", "none"] = Field(
        "marginal",
        description="of the consistency term and, except for `convex`, of the correlation term on data; "
        "the paper's w/o CV is `none` with marginal_weight 0",
    )
    alpha: AlphaConfig = Field(default_factory=AlphaConfig, description="weight of the correlation term on data")
    delta: DeltaConfig = Field(
        default_factory=lambda: DeltaConfig(low=0.02, high=0.02), description="small times of the distillation term"
    )
    step: StepConfig = Field(
        default_factory=lambda: StepConfig(low=0.05, high=0.05),
        description="Δt, log-uniform in the range, or growing through it",
    )
    time: SplitTimeConfig = Field(default_factory=SplitTimeConfig, description="distribution of t")
    teacher_step: Literal["analytical", "confidence", "confidence-authors"] = Field(
        "analytical",
        description="how the teacher goes from x_t to x_u; `confidence-authors` reveals as many positions, with the "
        "Gumbel scale, of the authors' MaskGIT code",
    )
    loss_domain: Literal["unknown", "all"] = Field(
        "unknown",
        description="positions and symbols of the terms: unknown positions and real symbols, or, as in the authors' "
        "MaskGIT code, all positions and also the mask symbol",
    )
    reference_steps: int = Field(
        16, ge=1, le=MAX_STEPS, description="grid of the teacher's trajectory when the recipe's data is `teacher`"
    )

    @model_validator(mode="after")
    def _leaves_time_for_t(self) -> Di4CConfig:
        if self.branch == "both" and self.delta.low + self.step.high >= 1:
            raise ValueError("delta.low + step.high must stay below 1, or no time is left for t")
        return self

    @property
    def predictions_per_sample(self) -> int:
        return self.latents

    @property
    def divisible_latents(self) -> int:
        return self.latents

    @property
    def graphs_at_once(self) -> int:
        return 2 if self.branch == "both" else 1  # the student at t and at δ

    def check_latent(self, latent: LatentConfig, started: bool = False) -> None:
        if latent.prior == "learned":
            raise ValueError(
                "a learned prior is trained by the variational method; --set latent.prior=standard removes it"
            )
        if self.stratified and not latent.is_one_uniform_number:
            raise ValueError(
                "method.stratified needs λ of one uniform number, as the recipes `di4c/…` have; "
                "--set method.stratified=false turns it off"
            )
