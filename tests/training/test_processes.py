"""The device of a run: the named one, also by number; Apple's GPU only on request."""

from __future__ import annotations

import os
from pathlib import Path
from types import SimpleNamespace

import pytest
import torch

from di4c_cli.errors import UserError
from di4c_cli.training import processes


@pytest.fixture
def two_gpus(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(torch.cuda, "is_available", lambda: True)
    monkeypatch.setattr(torch.cuda, "device_count", lambda: 2)
    monkeypatch.delenv(processes.DEVICE_VARIABLE, raising=False)


def test_make_accelerator_passes_the_number_of_the_gpu(two_gpus: None, monkeypatch: pytest.MonkeyPatch) -> None:
    asked: list[tuple[str | None, object]] = []

    def accelerator(**options: object) -> SimpleNamespace:
        asked.append((os.environ.get(processes.DEVICE_VARIABLE), options["cpu"]))
        return SimpleNamespace(device=torch.device("cuda"))

    monkeypatch.setattr(processes, "Accelerator", accelerator)
    for device in ("cuda:1", "cuda", None):
        processes.make_accelerator("no", device, [], Path())
    assert asked == [("cuda:1", False), (None, False), (None, False)]
    assert processes.DEVICE_VARIABLE not in os.environ, "the next run chooses for itself"


def test_make_accelerator_leaves_the_environment_as_it_is() -> None:
    """A variable that stays set would put every later run of this Python process on the CPU."""
    before = dict(os.environ)
    assert processes.make_accelerator("no", "cpu", [], Path()).device.type == "cpu"
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
