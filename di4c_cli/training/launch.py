"""Launch a run in several local processes; if one process fails, all end and one sentence says why.

torch's elastic multiprocessing starts and ends the processes. This module imports torch only when it launches: the
command line imports it for `launched` and `preset`.
"""

from __future__ import annotations

import logging
import math
import os
import signal
import socket
import sys
import tempfile
import time
from collections.abc import Mapping
from pathlib import Path
from typing import TYPE_CHECKING

import psutil

from di4c_cli.errors import UserError
from di4c_cli.recipe_file import nearest

if TYPE_CHECKING:
    from torch.distributed.elastic.multiprocessing import PContext

LAUNCHER_VARIABLE = "DI4C_LAUNCHED"
"""Environment variable of launched processes; its value is the process id of the launcher."""
FAILURE_GRACE_SECONDS = 5.0
"""Time that the other processes have to end by themselves after one has failed."""
CHECKPOINT_SECONDS = 7200
"""Longest time that the processes may take to finish their step and write a checkpoint after a signal."""
POLL_SECONDS = 0.05
HANDLED_SIGNALS = (signal.SIGTERM, signal.SIGINT, signal.SIGHUP, signal.SIGQUIT)
"""Signals for which torch installs handlers; they are restored when the run has ended."""
STOP_CODES = (128 + signal.SIGTERM, 128 + signal.SIGINT)
"""Exit codes of processes that stopped on a signal, with a checkpoint."""


def launched() -> bool:
    """Whether a launcher started this process: ours, `accelerate launch` or torchrun."""
    return LAUNCHER_VARIABLE in os.environ or "WORLD_SIZE" in os.environ or "LOCAL_RANK" in os.environ


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


def launch_with_accelerate(config: Path, processes: int | None, arguments: list[str]) -> int:
    """Run `accelerate launch` with a configuration; its processes run the same `di4c` command."""
    command = ["-m", "accelerate.commands.launch", "--config_file", str(config)]
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


def _run(command: list[str], environments: list[dict[str, str]]) -> int:
    """Run a command once per environment; only the first process writes to the terminal."""
    # imported here: `di4c --help` must not import torch
    from torch.distributed.elastic.multiprocessing import (
        DefaultLogsSpecs,
        SignalException,
        Std,
        start_processes,
    )

    logging.getLogger("torch.distributed.elastic.multiprocessing").setLevel(logging.CRITICAL)
    before = {number: signal.getsignal(number) for number in HANDLED_SIGNALS}
    ranks, context, stop = range(len(environments)), None, None
    with tempfile.TemporaryDirectory(ignore_cleanup_errors=True) as folder:
        try:
            context = start_processes(
                "di4c",
                command[0],
                args={rank: tuple(command[1:]) for rank in ranks},
                envs={rank: environments[rank] | {LAUNCHER_VARIABLE: str(os.getpid())} for rank in ranks},
                logs_specs=DefaultLogsSpecs(folder, redirects={rank: Std.ERR for rank in ranks if rank}),
            )
            while True:
                try:
                    if stop is not None:
                        context.close(stop, CHECKPOINT_SECONDS)
                    return _outcome(context, stop is not None)
                except SignalException as error:  # the first signal, or a second one while they stop
                    stop = signal.SIGINT if error.sigval == signal.SIGINT else signal.SIGTERM
        except SignalException as error:  # while they were started
            return 128 + error.sigval
        finally:
            if context is not None:
                context.close(signal.SIGKILL)
            for number, handler in before.items():
                signal.signal(number, handler)


def _outcome(context: PContext, stopped: bool) -> int:
    """Wait for all processes and return their common exit code."""
    # torch ends the others at once when one process fails. The main process would lose the sentence that explains
    # the failure, and torch does not tell which process failed first, so endings are watched here.
    order: list[int] = []
    deadline, result = math.inf, None
    while result is None:
        time.sleep(POLL_SECONDS)
        pids = context.pids()
        order += [rank for rank, pid in pids.items() if rank not in order and _ended(pid)]
        if order and deadline == math.inf:
            deadline = time.monotonic() + FAILURE_GRACE_SECONDS
        if len(order) == len(pids) or time.monotonic() > deadline:
            result = context.wait(timeout=0)
    codes = {rank: result.failures[rank].exitcode if rank in result.failures else 0 for rank in pids}
    first = next((rank for rank in order if codes[rank]), None)
    if first is None:
        return 0
    log = result.stderrs[first]
    lines = Path(log).read_text(errors="replace").strip().splitlines() if log else []
    return common_exit_code(codes, first, stopped, lines[-1] if lines else "")


def _ended(pid: int) -> bool:
    """Whether a child process has ended; its exit code stays for torch to collect."""
    try:
        return psutil.Process(pid).status() == psutil.STATUS_ZOMBIE
    except psutil.NoSuchProcess:
        return True


def common_exit_code(codes: Mapping[int, int], first: int, stopped: bool, detail: str = "") -> int:
    """The exit code of all processes together; `first` failed first, and `detail` is the last line it wrote.

    A failure that the main process, rank 0, has not explained is explained here.
    """
    if stopped:
        return next((code for code in STOP_CODES if code in codes.values()), 1)
    code = codes[first]
    if code > 0 and (first == 0 or codes[0] == code):
        return code
    reason = f"was killed by signal {-code}" if code < 0 else f"ended with exit code {code}"
    print(
        f"di4c: process {first + 1} of {len(codes)} {reason}, so the run stopped"
        f"{f' ({detail})' if detail else ''}. "
        "The last checkpoint is intact; run the same command again to go on.",
        file=sys.stderr,
        flush=True,
    )
    return max(code, 1)
