"""The collapse checks of Di4C. This module does not import torch."""

from __future__ import annotations

from di4c_cli.methods.diagnostics import MIN_NATS, Check, RunningMeans

MIN_SENSITIVITY = 1e-6
"""λ-sensitivity in nats below which two λ give the same prediction."""
MIN_KEPT_SHARE = 0.1
"""Share of its peak below which the influence of λ counts as collapsing."""


def mixture_warnings(latents: int) -> Check:
    """The check of a mixture that is trained with L latents per sample."""

    def check(figures: RunningMeans) -> tuple[str, str] | None:
        mean = figures.mean
        if latents == 1 or "lam_sensitivity" not in mean:
            return None
        influence, peak = mean["lam_sensitivity"], figures.peak["lam_sensitivity"]
        captured = max(mean.get("correlation_data", 0.0), mean.get("correlation_consis", 0.0))
        if influence < MIN_SENSITIVITY:
            return "no influence", (
                f"λ has no influence: two values of λ give the same prediction ({influence:.1e} nats apart), so the "
                "student is a product model like its teacher and cannot save steps. Condition every block on λ "
                "(--set latent.inject=film), start it away from zero (--set latent.init=0.02), or lower the learning "
                "rate."
            )
        if captured < MIN_NATS and influence < MIN_KEPT_SHARE * peak:
            return "collapsing", (
                f"The mixture is collapsing: the influence of λ fell from {peak:.2g} to {influence:.2g} nats, and "
                f"{captured:.2g} nats of correlation are left. Lower the learning rate, condition every block on λ "
                "(--set latent.inject=film), or give the correlation on data more weight (--set "
                "method.alpha.kind=sigmoid --set method.alpha.scale=1)."
            )
        effective = mean.get("lam_effective")
        if effective is not None and effective < 1.05 and latents > 2:
            return "single", (
                f"Only {effective:.2f} of {latents} λ explain a sample, so the correlation term rests on one draw and "
                "has a high variance. Use more latents (--latents) or a smaller latent.dim."
            )
        return None

    return check
