"""CollapseDetector: a warning when λ loses its influence, once, and not without reason."""

from __future__ import annotations

from di4c_cli.methods.di4c_checks import mixture_warnings
from di4c_cli.methods.diagnostics import WARMUP_STEPS, CollapseDetector
from di4c_cli.methods.variational import kl_warnings


def healthy(sensitivity: float = 0.05, correlation: float = 0.8, effective: float = 3.0) -> dict[str, float | None]:
    return {
        "lam_sensitivity": sensitivity,
        "correlation_data": correlation,
        "correlation_consis": correlation,
        "lam_effective": effective,
        "grad_distil": None,
    }


def detector_of(latents: int) -> CollapseDetector:
    return CollapseDetector(mixture_warnings(latents))


def told(detector: CollapseDetector, figures: dict[str, float | None], steps: int) -> list[str]:
    return [text for _ in range(steps) for text in detector.update(figures)]


def test_detector_is_silent_for_a_healthy_run() -> None:
    assert told(detector_of(8), healthy(), 3000) == []


def test_detector_reports_a_latent_without_influence() -> None:
    """A zero-initialised λ may be silent at first, not for ever."""
    detector = detector_of(8)
    assert told(detector, healthy(0.0, 0.0, 8.0), WARMUP_STEPS - 1) == []
    (text,) = told(detector, healthy(0.0, 0.0, 8.0), 500)
    assert "no influence" in text and "latent.inject=film" in text


def test_detector_reports_an_influence_that_vanishes() -> None:
    detector = detector_of(8)
    assert told(detector, healthy(0.05, 0.5), WARMUP_STEPS) == []
    warnings = told(detector, healthy(1e-5, 0.0, 7.9), 900)
    assert len(warnings) == 1 and "collapsing" in warnings[0] and "learning rate" in warnings[0]


def test_detector_ignores_a_short_dip() -> None:
    detector = detector_of(8)
    told(detector, healthy(0.05, 0.5), WARMUP_STEPS)
    assert told(detector, healthy(1e-5, 0.0), 5) == []
    assert told(detector, healthy(0.05, 0.5), 100) == []


def test_detector_repeats_a_warning_after_a_while() -> None:
    assert len(told(detector_of(8), healthy(0.0, 0.0, 8.0), WARMUP_STEPS + 2100)) == 3


def test_detector_reports_a_single_effective_latent() -> None:
    (text,) = told(detector_of(16), healthy(2.0, 3.0, 1.01), 600)
    assert "1.01 of 16" in text


def test_detector_is_silent_for_one_latent_by_choice() -> None:
    assert told(detector_of(1), healthy(0.0, 0.0, 1.0), 1000) == []


def test_detector_allows_two_latents_to_take_turns() -> None:
    """With two λ one of them explains a sample as a rule; with three that is worth a word."""
    assert told(detector_of(2), healthy(2.0, 3.0, 1.01), 600) == []
    (text,) = told(detector_of(3), healthy(2.0, 3.0, 1.01), 600)
    assert "1.01 of 3" in text
    assert told(detector_of(3), healthy(2.0, 3.0, 1.06), 600) == []


def test_detector_is_silent_if_the_influence_was_never_larger() -> None:
    """A product model by nature: λ never had more influence than now."""
    assert told(detector_of(8), healthy(0.01, 0.0), 2000) == []


def test_detector_counts_an_unmeasured_correlation_as_zero() -> None:
    detector, blind = detector_of(8), healthy(0.05) | {"correlation_data": None, "correlation_consis": None}
    assert told(detector, blind, WARMUP_STEPS) == []
    (text,) = told(detector, blind | {"lam_sensitivity": 1e-5}, 900)
    assert "collapsing" in text


def test_posterior_collapse_is_reported() -> None:
    detector = CollapseDetector(kl_warnings)
    assert told(detector, {"kl": 0.001, "reconstruction": 50.0}, WARMUP_STEPS - 1) == []
    (text,) = told(detector, {"kl": 0.001, "reconstruction": 50.0}, 500)
    assert "The posterior has collapsed" in text and "method.kl_weight.start" in text
    assert told(CollapseDetector(kl_warnings), {"kl": 5.0, "reconstruction": 50.0}, 3000) == []


def test_detector_without_a_check_is_silent() -> None:
    """The default of a method that names no check."""
    assert told(CollapseDetector(), healthy(0.0, 0.0, 1.0) | {"kl": 0.0}, 2000) == []
