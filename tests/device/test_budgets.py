"""Kernels, waits and memory of published recipes at their published sizes, on weights without numbers."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
import yaml

from tests.device import steps
from tests.device.pretend import Watch
from tests.device.steps import estimated_memory, published_sampling, published_step

BUDGETS = yaml.safe_load((Path(__file__).parent / "budgets.yaml").read_text(encoding="utf-8"))
PUBLISHED = ["sdtt-7", "maskgit-imagenet256", "tauldr-cifar10"]
PUBLISHED += [f"variational/{name}" for name in PUBLISHED]
SLACK = 0.8
"""A figure below this share of its budget lowers the budget."""


def check(watch: Watch, budget: dict[str, Any]) -> None:
    found = {"kernels": len(watch.kernels), "waits": sum(watch.waits.values())}
    for name, value in found.items():
        assert SLACK * budget[name] <= value <= budget[name], (name, value, watch.waits.most_common(8))
    assert not watch.unfused
    assert sum(watch.copied.values()) < 4096, watch.copied.most_common(3)


@pytest.mark.slow
@pytest.mark.parametrize("name", BUDGETS["steps"])
def test_training_step_keeps_its_budget(name: str) -> None:
    watch, _, _ = published_step(name)
    check(watch, BUDGETS["steps"][name])


@pytest.mark.slow
@pytest.mark.parametrize("budget", BUDGETS["samples"], ids=lambda budget: budget["recipe"])
def test_sampling_keeps_its_budget(budget: dict[str, Any]) -> None:
    options = {key: value for key, value in budget.items() if key not in ("recipe", "count", "kernels", "waits")}
    watch = published_sampling(budget["recipe"], budget["count"], **options)
    watch.copied.clear()  # constants of the process, once
    check(watch, budget)


@pytest.mark.slow
@pytest.mark.parametrize("name", PUBLISHED)
def test_estimate_is_within_a_tenth_of_the_peak(name: str) -> None:
    """At t = 1, where nothing is known and the loss takes the most memory."""
    watch, recipe, _ = published_step(name, method__time__one_share=1.0)
    assert estimated_memory(recipe).total == pytest.approx(watch.memory.peak, rel=0.1)


@pytest.mark.slow
def test_estimate_follows_the_size_of_the_gpu(monkeypatch: pytest.MonkeyPatch) -> None:
    """With 24 GB the chunks of the loss are smaller, and `sdtt-7` fits; CUDA itself takes 2 GiB more."""
    monkeypatch.setattr(steps, "GPU_BYTES", 24 << 30)
    watch, recipe, _ = published_step("sdtt-7", method__time__one_share=1.0)
    assert estimated_memory(recipe).total == pytest.approx(watch.memory.peak, rel=0.1)
    assert watch.memory.peak < 22 << 30


@pytest.mark.slow
@pytest.mark.parametrize("changes", [{"activation_checkpointing": True}, {"precision": "fp32"}])
def test_estimate_follows_the_options_of_training(changes: dict[str, Any]) -> None:
    options = {f"training__{name}": value for name, value in changes.items()}
    watch, recipe, _ = published_step("sdtt-7", method__time__one_share=1.0, **options)
    assert estimated_memory(recipe).total == pytest.approx(watch.memory.peak, rel=0.1)


@pytest.mark.slow
def test_kernels_and_waits_do_not_grow_with_latents_or_length() -> None:
    """Twice the latents and half the batch: the same work in the same number of kernels."""
    few, _, _ = published_step("maskgit-imagenet256", method__latents=8, training__batch=4)
    many, _, _ = published_step("maskgit-imagenet256", method__latents=32, training__batch=4)
    assert len(many.kernels) <= 1.05 * len(few.kernels)
    assert sum(many.waits.values()) <= sum(few.waits.values()) + 2
