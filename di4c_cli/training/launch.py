"""Launch a run in several local processes; if one process fails, all end and one sentence says why.

This module does not import torch, which takes longer than everything else here: the processes import it themselves.
"""

from __future__ import annotations

import importlib.util
import math
import os
import signal
import socket
import subprocess
import sys
import tempfile
import time
from collections.abc import Mapping
from contextlib import suppress
from pathlib import Path
from types import FrameType
from typing import Any

import psutil

from di4c_cli.errors import UserError
from di4c_cli.foreign.structured import read_yaml
from di4c_cli.printable import printable
from di4c_cli.recipe_file import nearest
from di4c_cli.signals import LAUNCHER_VARIABLE, StoppedBySignal, handled, patience

FAILURE_GRACE_SECONDS = 5
"""Time that the other processes have to end by themselves after one has failed."""
CHECKPOINT_SECONDS = 7200
"""Longest time that the processes may take to finish their step and write a checkpoint after a signal."""
POLL_SECONDS = 0.05
MAX_DIGITS = 6
"""Digits of a launcher's numbers: more processes or ports do not exist."""
HANDLED_SIGNALS = (signal.SIGTERM, signal.SIGINT, signal.SIGHUP, signal.SIGQUIT)
"""Signals that the launcher forwards; their handlers are restored when the run has ended."""
STOP_SIGNALS = (signal.SIGTERM, signal.SIGINT)
"""Signals on which processes stop with a checkpoint."""


def launched() -> bool:
    """Whether a launcher started this process: ours, `accelerate launch` or torchrun."""
    return LAUNCHER_VARIABLE in os.environ or "WORLD_SIZE" in os.environ or "LOCAL_RANK" in os.environ


def check_launcher_variables() -> None:
    """Reject values of a launcher's variables that no launcher sets; torch would wait for processes that never come."""
    if "WORLD_SIZE" not in os.environ and "LOCAL_RANK" not in os.environ:
        return
    hint = "Unset it, or start the run with --processes, torchrun or `accelerate launch`."
    numbers = {"WORLD_SIZE": 1, "RANK": 0, "LOCAL_RANK": -1, "MASTER_PORT": 0}
    for name in numbers:
        text = os.environ.get(name, str(numbers[name]))
        if text != "-1" and not (text.isascii() and text.isdecimal() and len(text) <= MAX_DIGITS):
            raise UserError(f"The environment variable {name} is '{text}' and not a sensible whole number.", hint)
        numbers[name] = int(text)
    size = numbers["WORLD_SIZE"]
    for name in ("RANK", "LOCAL_RANK"):
        if numbers[name] >= max(size, 1):
            raise UserError(f"The environment variable {name} is {numbers[name]} with WORLD_SIZE {size}.", hint)
    if (size > 1 or numbers["LOCAL_RANK"] >= 0) and not os.environ.get("MASTER_ADDR"):
        name = "WORLD_SIZE" if size > 1 else "LOCAL_RANK"
        raise UserError(f"The environment variable {name} is set, but MASTER_ADDR is not.", hint)


def presets() -> dict[str, Path]:
    """Shipped Accelerate configurations by name."""
    return {path.stem: path for path in sorted((Path(__file__).parent / "accelerate").glob("*.yaml"))}


def preset(name: str) -> Path:
    """A shipped configuration by name, or the user's own by path."""
    known = presets()
    if name in known:
        return known[name]
    if name.endswith((".yaml", ".yml")) and Path(name).is_file():
        return Path(name)
    raise UserError(
        f"Unknown Accelerate configuration '{name}'.{nearest(name, known)}",
        f"Choose one of {', '.join(known)}, or give the path of a YAML file.",
    )


def configured_processes(config: Path) -> tuple[int, int]:
    """The numbers of processes and machines in an Accelerate configuration; 1 where it has none."""
    tree = _configuration(config)
    found = [1 if tree.get(key) is None else tree[key] for key in ("num_processes", "num_machines")]
    if not all(type(number) is int and 1 <= number < 10**MAX_DIGITS for number in found):
        raise UserError(f"{config} has impossible numbers of processes or machines.", "Use whole numbers from 1 on.")
    return found[0], found[1]


def _configuration(config: Path) -> dict[str, Any]:
    tree = read_yaml(config, "Accelerate configuration")
    if not isinstance(tree, dict):
        raise UserError(f"{config} is not an Accelerate configuration.", "Write one with `accelerate config`.")
    return tree


def launch_with_accelerate(config: Path, processes: int | None, arguments: list[str]) -> int:
    """Run `accelerate launch` with a configuration; its processes run the same `di4c` command."""
    kind = _configuration(config).get("distributed_type")
    if kind == "DEEPSPEED" and importlib.util.find_spec("deepspeed") is None:
        raise UserError("DeepSpeed is not installed.", "Run `pip install deepspeed`, or use the fsdp2 configuration.")
    command = ["-m", "di4c_cli.training.accelerate_launcher", "--quiet", "--config_file", str(config)]
    if processes is not None:
        command += ["--num_processes", str(processes)]
    return _run([sys.executable, *command, "-m", "di4c_cli", *arguments], [{}])


def launch(processes: int, command: list[str], cpu: bool) -> int:
    """Run a command in `processes` local processes; returns their common exit code."""
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        port = str(probe.getsockname()[1])
    shared = {"WORLD_SIZE": str(processes), "LOCAL_WORLD_SIZE": str(processes)}
    shared |= {"MASTER_ADDR": "127.0.0.1", "MASTER_PORT": port}
    threads = max(1, (os.cpu_count() or 1) // processes)
    shared["OMP_NUM_THREADS"] = os.environ.get("OMP_NUM_THREADS", str(threads))
    if cpu:
        shared["ACCELERATE_USE_CPU"] = "true"
    ranks = [{"RANK": str(rank), "LOCAL_RANK": str(rank)} for rank in range(processes)]
    return _run(command, [shared | rank for rank in ranks])


class _Signal(Exception):
    """A signal arrived while the processes run."""

    def __init__(self, number: int) -> None:
        super().__init__(number)
        self.number = number


class _Ranks:
    """Processes in sessions of their own, so that a key press reaches only the launcher; rank 0 has the terminal."""

    def __init__(self, folder: Path) -> None:
        self.folder = folder
        self.processes: list[subprocess.Popen[bytes]] = []

    def start(self, command: list[str], environment: dict[str, str]) -> None:
        """Start the process of the next rank; stderr of all but the first goes to a file."""
        rank = len(self.processes)
        given = os.environ | environment | {LAUNCHER_VARIABLE: str(os.getpid())}
        log = (self.folder / f"stderr-{rank}").open("wb") if rank else None
        self.processes.append(subprocess.Popen(command, env=given, stderr=log, start_new_session=True))
        if log is not None:
            log.close()

    def end(self, number: int, seconds: float = FAILURE_GRACE_SECONDS) -> None:
        """Send a signal to all processes and wait; those that are left then are killed."""
        for last in (number, signal.SIGKILL):
            alive = [process for process in self.processes if process.poll() is None]
            for process in alive:
                with suppress(ProcessLookupError):
                    os.killpg(process.pid, last)
            deadline = time.monotonic() + seconds
            for process in alive:
                with suppress(subprocess.TimeoutExpired):
                    process.wait(max(0.0, deadline - time.monotonic()))


def _raise_signal(number: int, frame: FrameType | None) -> None:
    raise _Signal(number)


def _run(command: list[str], environments: list[dict[str, str]]) -> int:
    """Run a command once per environment; only the first process writes to the terminal."""
    handlers = handled(HANDLED_SIGNALS, _raise_signal)
    with patience(), tempfile.TemporaryDirectory(ignore_cleanup_errors=True) as folder, handlers:
        ranks = _Ranks(Path(folder))
        try:
            for environment in environments:
                ranks.start(command, environment)
            return _supervise(ranks)
        except _Signal as error:  # while the processes were started
            raise StoppedBySignal(error.number) from None
        finally:
            ranks.end(signal.SIGKILL)


def _supervise(ranks: _Ranks) -> int:
    """Wait for the processes and forward signals; returns their common exit code."""
    stop: int | None = None
    seconds: float = CHECKPOINT_SECONDS
    descendants: list[psutil.Process] = []  # `accelerate launch` has child processes of its own
    try:
        while True:
            try:
                if stop is not None:
                    ranks.end(stop, seconds)
                    _wait(descendants, seconds)
                return _outcome(ranks, stop is not None)
            except _Signal as error:
                if stop is not None:  # the second signal
                    seconds = FAILURE_GRACE_SECONDS
                stop = signal.SIGINT if error.number == signal.SIGINT else signal.SIGTERM
                descendants = descendants or psutil.Process().children(recursive=True)
    finally:
        for process in descendants:
            with suppress(psutil.NoSuchProcess):
                process.kill()


def _wait(processes: list[psutil.Process], seconds: float) -> None:
    """Wait for processes; one that nobody buries, as in a container without an init process, has ended too."""
    deadline = time.monotonic() + seconds
    while any(_is_alive(process) for process in processes) and time.monotonic() < deadline:
        time.sleep(POLL_SECONDS)


def _is_alive(process: psutil.Process) -> bool:
    try:
        return process.is_running() and process.status() != psutil.STATUS_ZOMBIE
    except psutil.NoSuchProcess:
        return False


def _outcome(ranks: _Ranks, stopped: bool) -> int:
    """Wait for all processes and return their common exit code."""
    processes = dict(enumerate(ranks.processes))
    order: list[int] = []
    deadline = math.inf
    while len(order) < len(processes) and time.monotonic() < deadline:
        time.sleep(POLL_SECONDS)
        order += [rank for rank, process in processes.items() if rank not in order and process.poll() is not None]
        if deadline == math.inf and any(processes[rank].returncode for rank in order):
            # the others may end by themselves, the main process with the sentence that explains the failure
            deadline = time.monotonic() + FAILURE_GRACE_SECONDS
    ranks.end(signal.SIGKILL)  # a process that waits for a dead one does not react to other signals
    codes = {rank: process.returncode or 0 for rank, process in processes.items()}
    first = next((rank for rank in order if codes[rank]), None)
    if first is None:
        return 0
    # rank 0 writes to the terminal
    said = (ranks.folder / f"stderr-{first}").read_text(errors="replace").strip().splitlines() if first else []
    return common_exit_code(codes, first, stopped, said[-1] if said else "")


def common_exit_code(codes: Mapping[int, int], first: int, stopped: bool, detail: str = "") -> int:
    """The exit code of all processes together; `first` failed first, and `detail` is the last line it wrote.

    A failure that the main process, rank 0, has not explained is explained here.
    """
    if stopped:
        found = set(codes.values())
        number = next((number for number in STOP_SIGNALS if found & {128 + number, -number}), None)
        if number is not None and codes[0] < 0:  # killed before it could say so
            print(f"di4c: {StoppedBySignal(number)}", file=sys.stderr, flush=True)
        return 1 if number is None else 128 + number
    code = codes[first]
    if code > 0 and (first == 0 or codes[0] == code):
        return code
    reason = f"was killed by signal {-code}" if code < 0 else f"ended with exit code {code}"
    print(
        f"di4c: process {first + 1} of {len(codes)} {reason}, so the run stopped"
        f"{f' ({printable(detail)})' if detail else ''}. "
        "What is finished is kept; run the same command again to go on.",
        file=sys.stderr,
        flush=True,
    )
    return max(code, 1)
