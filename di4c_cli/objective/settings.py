"""Values of the Di4C loss: terms, times, number of latents. Plain data, checked once, without torch."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field, fields
from typing import Any

from di4c_cli.errors import UserError

CHOICES = {
    "kind": ("zero", "const", "linear", "sigmoid"),
    "branch": ("both", "split"),
    "control_variate": ("marginal", "convex", "none"),
    "teacher_step": ("analytical", "confidence"),
    "reference": ("data", "teacher"),
}


def _check(owner: object, *names: str) -> None:
    for name in names:
        value, allowed = getattr(owner, name), CHOICES[name]
        if value not in allowed:
            raise UserError(f"objective.{name} is {value!r}.", f"Choose one of: {', '.join(allowed)}.")


@dataclass(frozen=True)
class Alpha:
    """α_t, the weight of the correlation term on data: `scale` times 0, 1, t or g(t) (eq. sigmoid-alpha)."""

    kind: str = "sigmoid"
    scale: float = 1.0

    def __post_init__(self) -> None:
        _check(self, "kind")


@dataclass(frozen=True)
class Span:
    """A range of times; `low = high` is a constant."""

    low: float
    high: float


@dataclass(frozen=True)
class Step(Span):
    """Δt: log-uniform in the range, or growing from its low to its high end over the training."""

    grows: bool = False


@dataclass(frozen=True)
class Delta(Span):
    """Small times δ: `low` with probability `at_low`, else uniform in the range."""

    at_low: float = 1.0


@dataclass(frozen=True)
class Times:
    """Distribution of t: uniform in [low, 1], or below δ with probability `small_share`; maybe on a grid.

    With probability `one_share` t is 1 instead.
    """

    low: float = 0.0
    grid: int | None = None
    small_share: float | None = None
    one_share: float = 0.0


@dataclass(frozen=True)
class PosteriorSettings:
    """An amortised posterior of λ and the price of using it (`objective.posterior`)."""

    weight: float = 1.0
    width: int = 256
    draws: int = 1
    floor: float = 0.05
    rise: Span = field(default_factory=lambda: Span(0.25, 0.6))


@dataclass(frozen=True)
class Settings:
    """The objective field by field, as in the recipe's section of the same name."""

    latents: int = 16
    stratified: bool = False
    branch: str = "split"
    distil_weight: float | str = 1.0
    consis_weight: float = 1.0
    marginal_weight: float = 1.0
    control_variate: str = "marginal"
    alpha: Alpha = field(default_factory=Alpha)
    delta: Delta = field(default_factory=lambda: Delta(0.02, 0.02))
    step: Step = field(default_factory=lambda: Step(0.05, 0.05))
    time: Times = field(default_factory=Times)
    teacher_step: str = "analytical"
    reference: str = "data"
    reference_steps: int = 16
    posterior: PosteriorSettings | None = None
    chunk_mb: float = 64.0
    cache_mb: float = 256.0

    def __post_init__(self) -> None:
        _check(self, "branch", "control_variate", "teacher_step", "reference")
        if self.latents < 1:
            raise UserError(f"objective.latents is {self.latents}.", "Use at least one λ per sample.")
        if isinstance(self.distil_weight, str) and self.distil_weight != "1/step":
            raise UserError(f"objective.distil_weight is {self.distil_weight!r}.", "Use a number or 1/step.")
        if not 0 < self.step.low <= self.step.high:
            raise UserError(
                "objective.step must be above 0.", "Give the time between x_t and x_u, e.g. 0.05."
            )
        if self.branch == "both" and self.delta.low + self.step.high >= 1:
            raise UserError("objective.delta.low + step leaves no time for t.", "Choose smaller ones.")

    @staticmethod
    def from_dict(values: Mapping[str, Any]) -> Settings:
        """From plain nested values, e.g. a dumped recipe section; a missing key keeps its default."""
        known = {entry.name for entry in fields(Settings)}
        if unknown := set(values) - known:
            raise UserError(
                f"The objective has no setting {', '.join(sorted(unknown))}.", "See docs/recipes.md."
            )
        return Settings(**_nested(values))


PARTS: dict[str, Any] = {
    "alpha": Alpha,
    "delta": Delta,
    "step": Step,
    "time": Times,
    "posterior": PosteriorSettings,
    "rise": Span,
}


def _nested(values: Mapping[str, Any]) -> dict[str, Any]:
    """Mappings under the names of parts become those parts."""
    return {
        name: PARTS[name](**_nested(value)) if name in PARTS and isinstance(value, Mapping) else value
        for name, value in values.items()
    }
