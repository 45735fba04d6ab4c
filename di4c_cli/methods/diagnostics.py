"""Collapse detection: warnings when λ loses its influence during training. This module does not import torch."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass, field

WARMUP_STEPS = 200
"""Steps before the first check: a student may start as its teacher, where λ has no influence yet."""
MEAN_DECAY = 0.98
"""Decay of the running means, about 50 steps."""
REPEAT_AFTER = 1000
"""Steps until the same warning may be repeated."""
MIN_SENSITIVITY = 1e-6
"""λ-sensitivity in nats below which two λ give the same prediction."""
MIN_NATS = 0.01
"""Correlation or KL in nats below which the mixture is as good as a product."""
MIN_KEPT_SHARE = 0.1
"""Share of its peak below which the influence of λ counts as collapsing."""


@dataclass
class RunningMeans:
    """Running mean and peak of every metric."""

    mean: dict[str, float] = field(default_factory=dict)
    peak: dict[str, float] = field(default_factory=dict)

    def update(self, figures: Mapping[str, float | None]) -> None:
        """Add the metrics of one step; a missing metric keeps its mean."""
        for name, value in figures.items():
            if value is not None:
                before = self.mean.get(name, value)
                self.mean[name] = MEAN_DECAY * before + (1 - MEAN_DECAY) * value
                self.peak[name] = max(self.peak.get(name, 0.0), self.mean[name])


Check = Callable[[RunningMeans], "tuple[str, str] | None"]
"""The kind and the text of the most serious warning, or None."""


@dataclass
class CollapseDetector:
    """Applies a method's check to the metrics of every step and returns the warnings that are new."""

    check: Check | None = None
    step: int = 0
    figures: RunningMeans = field(default_factory=RunningMeans)
    warned_at: dict[str, int] = field(default_factory=dict)

    def update(self, figures: Mapping[str, float | None]) -> list[str]:
        """Warnings after this step, usually none."""
        self.step += 1
        self.figures.update(figures)
        found = self.check(self.figures) if self.check and self.step >= WARMUP_STEPS else None
        if found is None or self.step - self.warned_at.get(found[0], -REPEAT_AFTER) < REPEAT_AFTER:
            return []
        self.warned_at[found[0]] = self.step
        return [found[1]]


def mixture_warnings(latents: int) -> Check:
    """The check of a mixture that is trained with L latents per sample."""

    def check(figures: RunningMeans) -> tuple[str, str] | None:
        mean = figures.mean
        if latents == 1 or "lam_sensitivity" not in mean:
            return None
        influence, peak = mean["lam_sensitivity"], figures.peak["lam_sensitivity"]
        captured = max(mean.get("correlation_data", 0.0), mean.get("correlation_consis", 0.0))
        if influence < MIN_SENSITIVITY:
            return "no influence", no_influence(influence)
        if captured < MIN_NATS and influence < MIN_KEPT_SHARE * peak:
            return "collapsing", collapsing(influence, peak, captured)
        effective = mean.get("lam_effective")
        if effective is not None and effective < 1.05 and latents > 2:
            return "single", single(effective, latents)
        return None

    return check


def kl_warnings(figures: RunningMeans) -> tuple[str, str] | None:
    """The check of the variational method: posterior collapse."""
    kl = figures.mean.get("kl")
    return ("posterior collapse", posterior_collapse(kl)) if kl is not None and kl < MIN_NATS else None


def no_influence(influence: float) -> str:
    """λ is ignored."""
    return (
        f"λ has no influence: two values of λ give the same prediction ({influence:.1e} nats apart), so the "
        "student is a product model like its teacher and cannot save steps. Condition every block on λ "
        "(--set latent.inject=film), start it away from zero (--set latent.init=0.02), or lower the learning "
        "rate."
    )


def collapsing(influence: float, peak: float, captured: float) -> str:
    """The influence of λ is vanishing."""
    return (
        f"The mixture is collapsing: the influence of λ fell from {peak:.2g} to {influence:.2g} nats, and "
        f"{captured:.2g} nats of correlation are left. Lower the learning rate, condition every block on λ "
        "(--set latent.inject=film), or give the correlation on data more weight (--set method.alpha.kind=sigmoid "
        "--set method.alpha.scale=1)."
    )


def posterior_collapse(kl: float) -> str:
    """q(λ|x0, x_t) equals the prior."""
    return (
        f"The posterior has collapsed: KL(q ‖ p) is {kl:.1e} nats, so λ carries no information about a sample and "
        "the student is a product model like its teacher. Keep the KL weight low for longer "
        "(--set method.kl_weight.start=0.02, a later method.kl_weight.rise_from), inject λ at every position "
        "(--set latent.inject=field), or start it further from zero (--set latent.init=0.3)."
    )


def single(effective: float, latents: int) -> str:
    """One λ explains each sample, so the gradient rests on one of the L draws."""
    return (
        f"Only {effective:.2f} of {latents} λ explain a sample, so the correlation term rests on one draw and has "
        "a high variance. Use more latents (--latents) or a smaller latent.dim."
    )
