"""Inside a training process: its accelerator and device, decisions shared by all processes, and signals.

From the first finished step of a round on, the first Ctrl-C or SIGTERM asks the training loop to stop after its step;
the second ends the process at once. Before that step and between rounds the first one ends it (`di4c_cli.signals`):
nothing would be saved, and the step may compile the network for minutes. A stopped run ends with 128 + the signal's
number, as shells report it: 130 after Ctrl-C, 143 after SIGTERM.
"""

from __future__ import annotations

import os
import signal
import sys
import time
from collections.abc import Callable, Iterator, Sequence
from contextlib import ExitStack, contextmanager
from datetime import timedelta
from pathlib import Path
from types import FrameType
from typing import Any, TypeVar

import torch
from accelerate import Accelerator
from accelerate.state import AcceleratorState
from accelerate.utils import InitProcessGroupKwargs, broadcast_object_list
from torch import distributed

from di4c_cli.errors import Di4cError, UserError
from di4c_cli.limits import process_limit
from di4c_cli.methods.latent_group import ALONE, LatentGroup
from di4c_cli.numerics import allow_tf32
from di4c_cli.signals import SAME_KEY_PRESS_SECONDS, handled, patience
from di4c_cli.training.launch import check_launcher_variables

COLLECTIVE_TIMEOUT = timedelta(hours=2)
"""How long processes wait for each other; one may be encoding a corpus. A dead process is noticed at once."""
DEVICE_VARIABLE = "ACCELERATE_TORCH_DEVICE"
"""Environment variable in which Accelerate looks for the device."""
LOST_CONNECTION_WORDS = ("Connection closed by peer", "Connection reset", "Broken pipe", "Socket", "gloo", "NCCL")
"""Words of torch's error messages which mean that another process of the run is gone."""

Value = TypeVar("Value")


class MainProcessError(Di4cError):
    """The main process failed and reports it; the others end without a message and with its exit code."""

    def __init__(self, exit_code: int) -> None:
        super().__init__("")
        self.exit_code = exit_code


class Stopped(Di4cError):
    """The run stopped on a signal, with a checkpoint."""

    def __init__(self, message: str, hint: str = "", exit_code: int = 128 + signal.SIGINT) -> None:
        super().__init__(message, hint)
        self.exit_code = exit_code


def lost_contact(error: Exception) -> bool:
    """Whether an error of torch's process group means that another process died."""
    return isinstance(error, RuntimeError) and any(words in str(error) for words in LOST_CONNECTION_WORDS)


def make_accelerator(precision: str, device: str | None, trackers: Sequence[str], project: Path) -> Accelerator:
    """The accelerator of this process, for as many processes as the launcher started."""
    check_launcher_variables()
    check_device(device)
    # a second run in one Python process may use another precision
    AcceleratorState._reset_state(reset_partial_state="WORLD_SIZE" not in os.environ)
    allow_tf32()
    with _numbered_device(device):
        accelerator = Accelerator(
            cpu=on_cpu(device),
            mixed_precision="no" if precision == "fp32" else precision,
            log_with=list(trackers) or None,
            project_dir=str(project) if trackers else None,
            kwargs_handlers=[InitProcessGroupKwargs(timeout=COLLECTIVE_TIMEOUT)],
        )
    plugin = getattr(accelerator.state, "fsdp_plugin", None)
    if plugin is not None:
        # every process reads the weights itself, and broadcasting them fails for the DiT's buffer
        plugin.cpu_ram_efficient_loading = False
        # autocast does it in the training loop, as without FSDP; a policy would round λ, times and the loss too
        plugin.mixed_precision_policy = None
    if precision == "fp16" and accelerator.device.type == "cpu":
        raise UserError("fp16 needs a GPU.", "Use --precision bf16 or fp32.")
    return accelerator


@contextmanager
def _numbered_device(device: str | None) -> Iterator[None]:
    """Tell Accelerate the number of the GPU, if the user gave one; it reads the variable when it is created."""
    before = os.environ.get(DEVICE_VARIABLE)
    if device is not None and ":" in device:
        os.environ[DEVICE_VARIABLE] = device
    try:
        yield
    finally:
        if before is None:
            os.environ.pop(DEVICE_VARIABLE, None)
        else:
            os.environ[DEVICE_VARIABLE] = before


def on_cpu(device: str | None) -> bool:
    """Whether a run with this `--device` uses the CPU. Apple's GPU is used only on request."""
    return device.partition(":")[0] == "cpu" if device is not None else not torch.cuda.is_available()


def idle_mps() -> bool:
    """Whether this machine has an Apple GPU that a run without `--device` does not use."""
    return torch.backends.mps.is_available() and not torch.cuda.is_available()


def check_device(device: str | None, processes: int | None = None) -> None:
    """Reject a device that this machine does not have, and one numbered GPU for several processes."""
    if device is None:
        return
    counts = {"cpu": 1, "cuda": torch.cuda.device_count(), "mps": int(torch.backends.mps.is_available())}
    kind, numbered, number = device.partition(":")
    if not numbered:
        number = "0"
    if not number.isdecimal() or int(number) >= counts.get(kind, 0):
        have = ", ".join(name for name, count in counts.items() if count)
        raise UserError(f"There is no device '{device}' here.", f"Available: {have}.")
    if numbered and (processes or int(os.environ.get("WORLD_SIZE", "1"))) > 1:
        raise UserError(
            f"Several processes cannot all use {device}.",
            f"Use --device {kind}, and choose GPUs with CUDA_VISIBLE_DEVICES.",
        )


def check_processes(processes: int, device: str | None, oversubscribe: bool = False) -> None:
    """Reject more processes than devices; CPU cores can be oversubscribed on request."""
    cpu = on_cpu(device)
    devices = (os.cpu_count() or 1) if cpu else max(1, torch.cuda.device_count())
    limit = process_limit(devices, cpu and oversubscribe)
    if processes > limit:
        kind = "CPU cores" if cpu else "GPUs"
        more = ", or add --oversubscribe" if cpu and processes <= process_limit(devices, True) else ""
        raise UserError(
            f"{processes} processes are more than this machine's {devices} {kind} allow (at most {limit}).",
            f"Use --processes {limit} or fewer{more}.",
        )


def on_main(accelerator: Accelerator, action: Callable[[], Value]) -> Value:
    """Run an action in the main process only and give its result, or its error, to all processes."""
    message: list[Any] = [None, None]
    if accelerator.is_main_process:
        try:
            message = [action(), None]
        except Di4cError as error:
            broadcast_object_list([None, error.exit_code])
            raise
    broadcast_object_list(message)
    if message[1] is not None:
        raise MainProcessError(message[1])
    value: Value = message[0]
    return value


def latent_group(accelerator: Accelerator, size: int) -> LatentGroup:
    """The group of `size` consecutive processes, among all of them, to which this one belongs."""
    if size == 1:
        return ALONE
    handle, _ = distributed.new_subgroups(size, timeout=COLLECTIVE_TIMEOUT)
    return LatentGroup(accelerator.process_index % size, size, handle)


@contextmanager
def leaving_process_group() -> Iterator[None]:
    """Leave the process group when all processes end with an error; its threads would otherwise abort at exit."""
    try:
        yield
    except (Di4cError, KeyboardInterrupt):
        if distributed.is_initialized():
            distributed.destroy_process_group()
        raise


class StopRequest:
    """`asked` becomes true when a signal arrives after `listen`, which works inside `stop_on_signal` alone."""

    def __init__(self, loud: bool = True) -> None:
        self.loud = loud
        self.listen: Callable[[], None] = lambda: None
        """Called when there is something to save; further calls do nothing."""
        self._first: dict[int, float] = {}

    @property
    def asked(self) -> bool:
        """Whether the run should stop; the loop reads it once per step."""
        return bool(self._first)

    @property
    def exit_code(self) -> int:
        """The code of the first signal; a process that another one told to stop reports Ctrl-C."""
        return 128 + next(iter(self._first), signal.SIGINT)

    def __call__(self, number: int, frame: FrameType | None) -> None:
        """The signal handler."""
        now = time.monotonic()
        if now - self._first.get(number, now) > SAME_KEY_PRESS_SECONDS:
            self._write("di4c: stopped at once; the last checkpoint is intact.\n")
            os._exit(128 + number)
        if not self._first:
            self._write("di4c: finishing this step and writing a checkpoint; a second signal stops at once.\n")
        self._first.setdefault(number, now)

    def _write(self, text: str) -> None:
        if self.loud:
            # directly to the descriptor: the handler may interrupt a write of the same stream
            os.write(sys.__stderr__.fileno() if sys.__stderr__ else 2, text.encode())


@contextmanager
def stop_on_signal(loud: bool = True) -> Iterator[StopRequest]:
    """SIGINT and SIGTERM go to the request from its `listen` on; the block restores the previous handlers."""
    request = StopRequest(loud)
    with ExitStack() as stack:

        def listen() -> None:
            request.listen = lambda: None
            stack.enter_context(patience())
            stack.enter_context(handled((signal.SIGINT, signal.SIGTERM), request))

        request.listen = listen
        yield request
