"""Several processes as one: the accelerator, and decisions taken once and shared."""

from __future__ import annotations

import os
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from datetime import timedelta
from pathlib import Path
from typing import Any, TypeVar

import torch
from accelerate import Accelerator
from accelerate.state import AcceleratorState
from accelerate.utils import InitProcessGroupKwargs, broadcast_object_list

from di4c_cli.errors import Di4cError, UserError
from di4c_cli.training.processor import avoid_broken_tiles

PATIENCE = timedelta(hours=2)
"""How long processes wait for each other; one may be encoding a corpus. A dead one is noticed at once."""

DEVICE = "ACCELERATE_TORCH_DEVICE"
"""Where Accelerate looks for the one device to use."""

Value = TypeVar("Value")


class Told(Di4cError):
    """An error of the main process, which prints it; the others end quietly with its exit code."""

    quiet = True


LOST = ("Connection closed by peer", "Connection reset", "Broken pipe", "Socket", "gloo", "NCCL")
"""Signs in a message that another process of the run is gone."""


def lost_contact(error: Exception) -> bool:
    """Whether an error of torch's process group means that another process died."""
    return isinstance(error, RuntimeError) and any(sign in str(error) for sign in LOST)


def make_accelerator(
    precision: str, device: str | None, trackers: Sequence[str], project: Path
) -> Accelerator:
    """The accelerator for one process or for however many the launcher started."""
    check_device(device)
    cpu = on_cpu(device)
    if cpu:
        os.environ["ACCELERATE_USE_CPU"] = "true"
        if precision != "no":
            avoid_broken_tiles()
    # a second run in one Python process may want another precision
    AcceleratorState._reset_state(reset_partial_state="WORLD_SIZE" not in os.environ)
    with _one_device(device):
        accelerator = Accelerator(
            cpu=cpu,
            mixed_precision=precision,
            log_with=list(trackers) or None,
            project_dir=str(project) if trackers else None,
            kwargs_handlers=[InitProcessGroupKwargs(timeout=PATIENCE)],
        )
    if precision == "fp16" and accelerator.device.type == "cpu":
        raise UserError("fp16 needs a GPU.", "Use --precision bf16 or no.")
    return accelerator


@contextmanager
def _one_device(device: str | None) -> Iterator[None]:
    """Tell Accelerate the number of the GPU, if one was named; it asks once, when it is made."""
    before = os.environ.get(DEVICE)
    if device is not None and ":" in device:
        os.environ[DEVICE] = device
    try:
        yield
    finally:
        if before is None:
            os.environ.pop(DEVICE, None)
        else:
            os.environ[DEVICE] = before


def on_cpu(device: str | None) -> bool:
    """Whether a run with this `--device` uses the CPU. Apple's GPU is used only when it is asked for."""
    return device.partition(":")[0] == "cpu" if device is not None else not torch.cuda.is_available()


def idle_mps() -> bool:
    """Whether there is a GPU of Apple's that a run without `--device` leaves alone."""
    return torch.backends.mps.is_available() and not torch.cuda.is_available()


def training_device(device: str | None) -> str:
    """Where one process trains with this `--device`, for what comes after the training."""
    return device or ("cpu" if on_cpu(device) else "cuda")


def check_device(device: str | None) -> None:
    """Refuse a device this machine does not have, and one GPU by its number for several processes."""
    if device is None:
        return
    counts = {"cpu": 1, "cuda": torch.cuda.device_count(), "mps": int(torch.backends.mps.is_available())}
    kind, numbered, number = device.partition(":")
    if not numbered:
        number = "0"
    if not number.isdecimal() or int(number) >= counts.get(kind, 0):
        have = ", ".join(name for name, count in counts.items() if count)
        raise UserError(f"There is no device '{device}' here.", f"Available: {have}.")
    if numbered and int(os.environ.get("WORLD_SIZE", "1")) > 1:
        raise UserError(
            f"Several processes cannot all train on {device}.",
            f"Write --device {kind}, and choose GPUs with CUDA_VISIBLE_DEVICES.",
        )


def on_main(accelerator: Accelerator, action: Callable[[], Value]) -> Value:
    """Run an action in the main process alone and give its result, or its error, to all of them."""
    message: list[Any] = [None, None]
    if accelerator.is_main_process:
        try:
            message = [action(), None]
        except Di4cError as error:
            broadcast_object_list([None, error.exit_code])
            raise
    broadcast_object_list(message)
    if message[1] is not None:
        told = Told("The main process stopped.")
        told.exit_code = message[1]
        raise told
    value: Value = message[0]
    return value
