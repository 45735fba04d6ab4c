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
MIN_NATS = 0.01
"""Correlation or KL in nats below which the mixture is no better than a product."""


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
