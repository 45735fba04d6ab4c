"""The device of a run: the named one, also by number; Apple's GPU only on request."""

from __future__ import annotations

import os
from pathlib import Path
from types import SimpleNamespace

import pytest
import torch

from di4c_cli.errors import UserError
from di4c_cli.methods.base import TrainedPart
from di4c_cli.model import load_folder
from di4c_cli.training import loop, processes
from di4c_cli.training.student_init import build_method, new_student, student_config
from tests.helpers.small_run import small_recipe


@pytest.fixture
def two_gpus(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(torch.cuda, "is_available", lambda: True)
    monkeypatch.setattr(torch.cuda, "device_count", lambda: 2)
    monkeypatch.delenv(processes.DEVICE_VARIABLE, raising=False)


def test_make_accelerator_passes_the_number_of_the_gpu(two_gpus: None, monkeypatch: pytest.MonkeyPatch) -> None:
    asked: list[tuple[str | None, object]] = []

    def accelerator(**options: object) -> SimpleNamespace:
        asked.append((os.environ.get(processes.DEVICE_VARIABLE), options["cpu"]))
        return SimpleNamespace(device=torch.device("cuda"), state=None)

    monkeypatch.setattr(processes, "Accelerator", accelerator)
    for device in ("cuda:1", "cuda", None):
        processes.make_accelerator("fp32", device, [], Path())
    assert asked == [("cuda:1", False), (None, False), (None, False)]
    assert processes.DEVICE_VARIABLE not in os.environ, "the next run chooses for itself"


def test_make_accelerator_leaves_the_environment_as_it_is() -> None:
    """A variable that stays set would put every later run of this Python process on the CPU."""
    before = dict(os.environ)
    assert processes.make_accelerator("fp32", "cpu", [], Path()).device.type == "cpu"
    assert dict(os.environ) == before


@pytest.mark.parametrize("device", ["cuda:2", "cuda:x", "cuda:", "cuda:-1", "tpu", "cpu:1"])
def test_check_device_rejects_missing_devices(two_gpus: None, device: str) -> None:
    with pytest.raises(UserError, match=f"no device '{device}'.*Available: cpu, cuda"):
        processes.check_device(device)


def test_check_device_rejects_one_gpu_for_several_processes(two_gpus: None, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("WORLD_SIZE", "2")
    processes.check_device("cuda")
    with pytest.raises(UserError, match=r"cuda:1.*CUDA_VISIBLE_DEVICES"):
        processes.check_device("cuda:1")


def test_apple_gpu_is_used_only_on_request(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(torch.cuda, "is_available", lambda: False)
    monkeypatch.setattr(torch.backends.mps, "is_available", lambda: True)
    assert processes.on_cpu(None) and processes.idle_mps()
    assert not processes.on_cpu("mps")


def test_optimizer_is_built_for_parameters_on_the_device(teacher: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """It is fused only if its parameters are on a GPU by then."""

    class Built(Exception):
        pass

    def build(parts: list[TrainedPart], settings: object) -> None:
        raise Built({parameter.device.type for part in parts for parameter in part.parameters})

    model, recipe = load_folder(teacher), small_recipe(teacher)
    method = build_method(recipe, new_student(model, student_config(model, recipe, 1), recipe, 1), model.denoiser, 1)
    monkeypatch.setattr(loop, "build_optimizer", build)
    accelerator = processes.make_accelerator("fp32", "cpu", [], Path())
    accelerator.state.device = torch.device("meta")
    with pytest.raises(Built, match="meta"):
        loop.TrainingLoop(accelerator, recipe, 1, method, None, None)  # type: ignore[arg-type]
