"""Training and sampling on the pretend GPU: the CPU's numbers, and no operation on tensors of two devices."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import pytest
import torch
from torch import Tensor

from di4c_cli import recipe_file
from di4c_cli.noise import Noise
from di4c_cli.training.pretrain_config import RunRecipe
from tests.device.pretend import PretendTensor, Watch, held
from tests.device.steps import load, sample, training_gradients

SMALL_CHUNKS = {"method.chunk_mb": 0.001, "method.cache_mb": 0.002}
TRAINED: list[tuple[str, dict[str, Any]]] = [
    *((f"{method}/{task}", {}) for method in ("di4c",) for task in ("digits", "pixels", "words", "fashion")),
    *((task, {}) for task in ("digits", "pixels", "words", "fashion")),
    *((f"moment_matching/{task}", {}) for task in ("pixels", "fashion")),
    ("words", SMALL_CHUNKS),
    ("sdtt/words", {}),
    ("di4c/words", SMALL_CHUNKS),
    ("di4c/digits", {"method.stratified": True}),
    ("di4c/digits", {"method.reference_steps": 3}),
    ("di4c/fashion", {"method.teacher_step": "confidence", "method.step": {"low": 0.1, "high": 0.1}}),
    ("di4c/digits", {"data": "teacher"}),
    ("di4c/pixels", {"method.control_variate": "none"}),
    ("di4c/words", {"training.adapter": {"rank": 2}}),
    *(("masked-lm", {"teacher": kind, "method.latents": 3}) for kind in ("dream", "esm")),
    ("duo", {"teacher": "uniform"}),
    ("words", {"teacher": "uniform"}),
    ("variational/words", {"method.iwae_samples": 2}),
    ("pretrain/digits", {}),
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
    ("words", {"steps": 2, "given": 3}),
    ("dream", {"steps": 2}),
    ("esm", {"steps": 2}),
    ("uniform", {"steps": 2}),
    ("uniform", {"steps": 2, "sampler": "tau-leaping", "corrector": 1}),
    ("labelled-pixels", {"steps": 2}),
]
SCORED = [("digits", torch.float32), ("words", torch.float32), ("words", torch.bfloat16)]
PROCESSES = ["digits", "pixels", "uniform"]
NUMBERED: list[Sequence[int] | Tensor] = [range(7, 10), [9, 2, 5], torch.tensor([9, 2, 5])]


def case_names(cases: list[tuple[str, dict[str, Any]]]) -> list[str]:
    """A name for each case."""
    return [" ".join([name, *(f"{key}={value}" for key, value in more.items())]) for name, more in cases]


def read(name: str, changes: dict[str, Any]) -> RunRecipe:
    """A recipe without dropout, whose masks differ from device to device."""
    changes = {"training.dropout": 0.0, **changes}
    return (recipe_file.read_pretrain if name.startswith("pretrain/") else recipe_file.read)(name, changes)


@pytest.mark.parametrize(("name", "changes"), TRAINED, ids=case_names(TRAINED))
def test_training_step_equals_the_cpu(name: str, changes: dict[str, Any]) -> None:
    recipe = read(name, changes)
    wanted, gradients = training_gradients(recipe, "cpu")
    with Watch() as watch:
        found, ours = training_gradients(recipe, "gpu", watch)
    assert found == pytest.approx(wanted, rel=1e-4, abs=1e-6)
    assert ours.keys() == gradients.keys()
    largest = max(float(value.abs().max()) for value in gradients.values())
    worst = max(float((value - ours[key]).abs().max()) for key, value in gradients.items())
    assert worst < 1e-2 * largest
    assert not watch.unfused and not +watch.indexed_from_cpu


def test_batch_without_unknown_positions_has_gradients_of_zero() -> None:
    recipe = read("di4c/words", {})
    times = Noise(0, range(100_000), "train/1").uniform("t")
    index = times.topk(2, largest=False).indices.tolist()
    with Watch() as watch:
        found, gradients = training_gradients(recipe, "gpu", watch, index)
    assert found == 0 and gradients and not any(value.any() for value in gradients.values())


@pytest.mark.parametrize(("name", "options"), SAMPLED, ids=case_names(SAMPLED))
def test_samples_equal_the_cpu(name: str, options: dict[str, Any]) -> None:
    wanted = sample(name, "cpu", **options)
    with Watch() as watch:
        assert torch.equal(sample(name, "gpu", **options), wanted)
    assert not +watch.indexed_from_cpu


@pytest.mark.parametrize(("name", "dtype"), SCORED)
def test_log_probs_equal_the_cpu(name: str, dtype: torch.dtype) -> None:
    one, other = load(name), load(name)
    x = torch.full((2, one.denoiser.length), one.denoiser.symbols)
    x[:, :3] = 1
    one.denoiser.to(dtype)
    wanted = one.log_probs(x, 0.5)
    with Watch():
        other.denoiser.to(dtype)
        found = held(other.to("gpu").log_probs(x, 0.5))
    assert torch.allclose(found.float(), wanted.float(), atol=1e-5 if dtype is torch.float32 else 0.05)


@pytest.mark.parametrize("name", PROCESSES)
def test_transition_matrices_equal_the_cpu(name: str) -> None:
    process = load(name).denoiser.process
    s, t = torch.tensor([[0.1, 0.3], [0.4, 0.9]], dtype=torch.float64)
    wanted = process.transition(s, t)
    with Watch() as watch:
        found = process.transition(s.to("gpu"), t.to("gpu"))
        assert isinstance(found, PretendTensor) and torch.allclose(held(found), wanted)
    assert not +watch.indexed_from_cpu


@pytest.mark.parametrize("index", NUMBERED, ids=["consecutive", "scattered", "tensor"])
def test_noise_has_the_bits_of_the_cpu_and_is_made_on_the_device(index: Sequence[int] | Tensor) -> None:
    with Watch() as watch:
        found = held(Noise(3, index, "test", "gpu").uniform("u", 1000))
    assert torch.equal(found, Noise(3, index, "test").uniform("u", 1000))
    assert sum(watch.copied.values()) <= 8 * len(index), "the sample numbers alone may come from the CPU"


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
