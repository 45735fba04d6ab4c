"""Warnings: told when the mixture dies, once, and not before or without reason."""

from __future__ import annotations

from di4c_cli.objective.watch import GRACE, Watch


def healthy(
    sensitivity: float = 0.05, correlation: float = 0.8, effective: float = 3.0
) -> dict[str, float | None]:
    return {
        "lam_sensitivity": sensitivity,
        "correlation_data": correlation,
        "correlation_consis": correlation,
        "lam_effective": effective,
        "grad_distil": None,
    }


def told(watch: Watch, figures: dict[str, float | None], steps: int) -> list[str]:
    return [text for _ in range(steps) for text in watch.look(figures)]


def test_a_healthy_run_is_left_alone() -> None:
    assert told(Watch(8), healthy(), 3000) == []


def test_influence_that_never_comes() -> None:
    """A zero-initialised λ may be silent at first, not for ever."""
    watch = Watch(8)
    assert told(watch, healthy(0.0, 0.0, 8.0), GRACE - 1) == []
    (text,) = told(watch, healthy(0.0, 0.0, 8.0), 500)
    assert "no influence" in text and "latent.inject=film" in text


def test_influence_that_goes_away() -> None:
    watch = Watch(8)
    assert told(watch, healthy(0.05, 0.5), GRACE) == []
    warnings = told(watch, healthy(1e-5, 0.0, 7.9), 900)
    assert len(warnings) == 1 and "collapsing" in warnings[0] and "learning rate" in warnings[0]


def test_a_dip_is_not_a_collapse() -> None:
    watch = Watch(8)
    told(watch, healthy(0.05, 0.5), GRACE)
    assert told(watch, healthy(1e-5, 0.0), 5) == []
    assert told(watch, healthy(0.05, 0.5), 100) == []


def test_the_warning_comes_back_after_a_while() -> None:
    assert len(told(Watch(8), healthy(0.0, 0.0, 8.0), GRACE + 2100)) == 3


def test_one_latent_for_every_sample() -> None:
    (text,) = told(Watch(16), healthy(2.0, 3.0, 1.01), 600)
    assert "1.01 of 16" in text


def test_one_latent_by_choice() -> None:
    assert told(Watch(1), healthy(0.0, 0.0, 1.0), 1000) == []


def test_two_latents_may_well_take_turns() -> None:
    """With two λ one of them explains a sample as a rule; with three that is worth a word."""
    assert told(Watch(2), healthy(2.0, 3.0, 1.01), 600) == []
    (text,) = told(Watch(3), healthy(2.0, 3.0, 1.01), 600)
    assert "1.01 of 3" in text
    assert told(Watch(3), healthy(2.0, 3.0, 1.06), 600) == []


def test_little_influence_is_not_a_loss() -> None:
    """A product model by nature: λ never had more influence than now."""
    assert told(Watch(8), healthy(0.01, 0.0), 2000) == []


def test_correlation_that_is_not_measured_counts_as_none() -> None:
    watch, blind = Watch(8), healthy(0.05) | {"correlation_data": None, "correlation_consis": None}
    assert told(watch, blind, GRACE) == []
    (text,) = told(watch, blind | {"lam_sensitivity": 1e-5}, 900)
    assert "collapsing" in text


def test_a_posterior_that_is_its_prior() -> None:
    """One λ a sample has no mixture figures; what its posterior costs is looked at instead."""
    watch = Watch(1)
    assert told(watch, {"kl": 0.001, "explained": 50.0}, GRACE - 1) == []
    (text,) = told(watch, {"kl": 0.001, "explained": 50.0}, 500)
    assert "λ is not used" in text and "posterior.floor" in text
    assert told(Watch(1), {"kl": 5.0, "explained": 50.0}, 3000) == []
