"""Training and sampling on the pretend GPU: the CPU's numbers, and no operation on tensors of two devices."""

from __future__ import annotations

from typing import Any

import pytest
import torch

import di4c_cli
from di4c_cli import recipe_file
from tests.device.pretend import Watch, held
from tests.device.steps import sample, training_gradients

SMALL_CHUNKS = {"method.chunk_mb": 0.001, "method.cache_mb": 0.002}
TRAINED: list[tuple[str, dict[str, Any]]] = [
    *((f"{method}/{task}", {}) for method in ("di4c",) for task in ("digits", "pixels", "words", "fashion")),
    *((task, {}) for task in ("digits", "pixels", "words", "fashion")),
    *((f"moment_matching/{task}", {}) for task in ("pixels", "fashion")),
    ("moment_matching/words", SMALL_CHUNKS),
    ("sdtt/words", {}),
    ("di4c/words", SMALL_CHUNKS),
    ("di4c/digits", {"method.stratified": True}),
    ("di4c/digits", {"method.reference_steps": 3}),
    ("di4c/fashion", {"method.teacher_step": "confidence", "method.step": {"low": 0.1, "high": 0.1}}),
    ("di4c/digits", {"data": "teacher"}),
    ("di4c/pixels", {"method.control_variate": "none"}),
]
SAMPLED: list[tuple[str, dict[str, Any]]] = [
    ("digits-student", {"steps": 2, "hybrid": 0}),
    ("digits-student", {"steps": 2}),
    ("digits", {"steps": 2, "tile": 1}),
    ("digits", {"steps": 2, "dtype": "float32"}),
    ("digits", {"steps": 2, "label": 3, "guidance": 1.5}),
    ("fashion-student", {"steps": 2, "sampler": "confidence", "guidance": 2.0, "label": 3, "hybrid": 1}),
    ("fashion", {"steps": 2, "sampler": "confidence", "dtype": "float32"}),
    ("pixels", {"steps": 2}),
    ("pixels-student", {"steps": 2}),
    ("pixels", {"steps": 2, "sampler": "tau-leaping", "corrector": 1}),
    ("words", {"steps": 2, "top_p": 0.9, "temperature": 0.8}),
    ("words-student", {"steps": 3}),
    ("words", {"steps": 2, "given": True}),
]


def case_names(cases: list[tuple[str, dict[str, Any]]]) -> list[str]:
    """A name for each case."""
    return [" ".join([name, *(f"{key}={value}" for key, value in more.items())]) for name, more in cases]


@pytest.mark.parametrize(("name", "changes"), TRAINED, ids=case_names(TRAINED))
def test_training_step_equals_the_cpu(name: str, changes: dict[str, Any]) -> None:
    recipe = recipe_file.read(name, {"training.dropout": 0.0, **changes})
    wanted, gradients = training_gradients(recipe, "cpu")
    with Watch() as watch:
        found, ours = training_gradients(recipe, "gpu", watch)
    assert found == pytest.approx(wanted, rel=1e-4)
    assert ours.keys() == gradients.keys()
    largest = max(float(value.abs().max()) for value in gradients.values())
    worst = max(float((value - ours[key]).abs().max()) for key, value in gradients.items())
    assert worst < 1e-2 * largest
    assert not watch.unfused


@pytest.mark.parametrize(("name", "options"), SAMPLED, ids=case_names(SAMPLED))
def test_samples_equal_the_cpu(name: str, options: dict[str, Any]) -> None:
    wanted = sample(name, "cpu", **options)
    with Watch():
        assert torch.equal(sample(name, "gpu", **options), wanted)


@pytest.mark.parametrize("name", ["digits", "words"])
def test_log_probs_equal_the_cpu(name: str) -> None:
    model = di4c_cli.load(name)
    x = torch.full((2, model.denoiser.length), model.denoiser.symbols)
    x[:, :3] = 1
    wanted = model.log_probs(x, 0.5)
    with Watch():
        found = di4c_cli.load(name).to("gpu").log_probs(x, 0.5)
        assert torch.allclose(held(found), wanted, atol=1e-5)


def test_watch_raises_where_devices_meet() -> None:
    with Watch(), pytest.raises(RuntimeError, match="on the CPU and on the GPU"):
        torch.zeros(3, device="gpu") + torch.zeros(3)


def test_watch_counts_kernels_and_waits() -> None:
    with Watch() as watch:
        x = torch.zeros(3, device="gpu")
        watch.clear()
        y = (x + 1).view(3, 1)
        y.nonzero()
        y.sum().item()
        y.cpu()
    assert [kernel.name for kernel in watch.kernels] == ["add", "nonzero", "sum", "_local_scalar_dense", "_to_copy"]
    assert sum(watch.waits.values()) == 3
