"""Watches the health figures of a run and says in plain words when the mixture is dying. Without torch."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field

GRACE = 200
"""Steps before the first judgement: a student may start as its teacher, where λ has no influence yet."""
MEMORY = 0.98
"""Decay of the running means, about 50 steps."""
AGAIN = 1000
"""Steps until the same warning may be repeated."""
NOTHING = 1e-6
"""λ-sensitivity in nats below which two λ make the same prediction."""
LITTLE = 0.01
"""Correlation in nats below which a mixture is as good as a product."""
LOST = 0.1
"""A mixture that keeps less than this share of the influence λ once had is losing it."""


@dataclass
class Watch:
    """One run's memory of its figures; give it every step's mean figures, it answers with new warnings."""

    latents: int
    step: int = 0
    mean: dict[str, float] = field(default_factory=dict)
    peak: dict[str, float] = field(default_factory=dict)
    told: dict[str, int] = field(default_factory=dict)

    def look(self, figures: Mapping[str, float | None]) -> list[str]:
        """Warnings that this step gives rise to, usually none. Missing figures keep their last mean."""
        self.step += 1
        for name, value in figures.items():
            if value is not None:
                before = self.mean.get(name, value)
                self.mean[name] = MEMORY * before + (1 - MEMORY) * value
                self.peak[name] = max(self.peak.get(name, 0.0), self.mean[name])
        if self.step < GRACE:
            return []
        return [text for kind, text in [*self._judge_posterior(), *self._judge()] if self._is_new(kind)]

    def _judge_posterior(self) -> list[tuple[str, str]]:
        """With `objective.posterior`: does λ say anything about the sample?"""
        paid = self.mean.get("kl")
        return [("unused", unused(paid))] if paid is not None and paid < LITTLE else []

    def _judge(self) -> list[tuple[str, str]]:
        """What is wrong with the mixture now; the worst comes first and silences the rest."""
        if self.latents == 1 or "lam_sensitivity" not in self.mean:
            return []
        influence = self.mean["lam_sensitivity"]
        captured = max(self.mean.get("correlation_data", 0.0), self.mean.get("correlation_consis", 0.0))
        if influence < NOTHING:
            return [("no influence", no_influence(influence))]
        if captured < LITTLE and influence < LOST * self.peak["lam_sensitivity"]:
            return [("losing", losing(influence, self.peak["lam_sensitivity"], captured))]
        effective = self.mean.get("lam_effective")
        if effective is not None and effective < 1.05 and self.latents > 2:
            return [("single", single(effective, self.latents))]
        return []

    def _is_new(self, kind: str) -> bool:
        if self.step - self.told.get(kind, -AGAIN) < AGAIN:
            return False
        self.told[kind] = self.step
        return True


def no_influence(influence: float) -> str:
    """λ is ignored."""
    return (
        f"λ has no influence: two values of λ give the same prediction ({influence:.1e} nats apart), so the "
        "student is a product model like its teacher and cannot gain steps. Condition every block by λ "
        "(--set latent.inject=film), start it away from zero (--set latent.init=0.02), or lower the learning "
        "rate."
    )


def losing(influence: float, peak: float, captured: float) -> str:
    """λ is on its way out."""
    return (
        f"The mixture is collapsing: the influence of λ fell from {peak:.2g} to {influence:.2g} nats and "
        f"{captured:.2g} nats of correlation are left; the student is turning into its teacher. Lower the "
        "learning rate, condition every block by λ (--set latent.inject=film), or give the correlation on data "
        "more weight (--set objective.alpha.kind=sigmoid --set objective.alpha.scale=1)."
    )


def unused(paid: float) -> str:
    """The posterior of λ is its prior."""
    return (
        f"λ is not used: its posterior costs {paid:.1e} nats, so it says nothing about a sample and the student "
        "is a product model like its teacher. Let λ be cheap for longer (--set objective.posterior.floor=0.02, a "
        "later objective.posterior.rise), let it act on every position (--set latent.inject=field), or start it "
        "further from zero (--set latent.init=0.3)."
    )


def single(effective: float, latents: int) -> str:
    """Every sample belongs to one λ, so that only one of L estimates carries the gradient."""
    return (
        f"Only {effective:.2f} of {latents} λ explain a sample, so the correlation term rests on one draw and "
        "is noisy. More latents (--latents) make it steadier; a smaller latent.dim makes λ easier to hit."
    )
