"""Starting several local processes and watching them: if one dies, all end, within seconds, with a reason."""

from __future__ import annotations

import os
import signal
import socket
import subprocess
import sys
import tempfile
import time
from dataclasses import dataclass, field
from pathlib import Path
from types import FrameType
from typing import IO

from di4c_cli.errors import UserError
from di4c_cli.recipe_file import nearest

LAUNCHED = "DI4C_LAUNCHED"
"""Set in the environment of started processes; its value is the process that started them."""
GRACE = 5.0
"""Seconds the others get to end by themselves after one has failed."""
STOPPED = (128 + signal.SIGTERM, 128 + signal.SIGINT)
"""Exit codes of processes that stopped on a signal, with a checkpoint."""


def launched() -> bool:
    """Whether this process was started by a launcher (ours, `accelerate launch` or torchrun)."""
    return LAUNCHED in os.environ or "WORLD_SIZE" in os.environ or "LOCAL_RANK" in os.environ


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
    """`accelerate launch` with a configuration; the processes run the same command."""
    command = [sys.executable, "-m", "accelerate.commands.launch", "--config_file", str(config)]
    if processes is not None:
        command += ["--num_processes", str(processes)]
    command += ["-m", "di4c_cli", *arguments]
    return Family([_Child(0, subprocess.Popen(command, env=_environment(), start_new_session=True))]).wait()


def launch(processes: int, command: list[str], cpu: bool) -> int:
    """`processes` local processes of one command; the exit code of all of them together."""
    port, children = _free_port(), []
    threads = str(max(1, (os.cpu_count() or 1) // processes))
    for rank in range(processes):
        environment = _environment() | {
            "RANK": str(rank),
            "LOCAL_RANK": str(rank),
            "WORLD_SIZE": str(processes),
            "LOCAL_WORLD_SIZE": str(processes),
            "MASTER_ADDR": "127.0.0.1",
            "MASTER_PORT": str(port),
        }
        environment.setdefault("OMP_NUM_THREADS", threads)
        if cpu:
            environment["ACCELERATE_USE_CPU"] = "true"
        log: IO[bytes] | None = None if rank == 0 else tempfile.TemporaryFile()  # noqa: SIM115
        process = subprocess.Popen(command, env=environment, stderr=log, start_new_session=True)
        children.append(_Child(rank, process, log))
    return Family(children).wait()


def _environment() -> dict[str, str]:
    return dict(os.environ) | {LAUNCHED: str(os.getpid())}


def _free_port() -> int:
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        return int(probe.getsockname()[1])


@dataclass
class _Child:
    rank: int
    process: subprocess.Popen[bytes]
    log: IO[bytes] | None = None
    code: int | None = None

    def last_line(self) -> str:
        """The end of what a silent process wrote, for the report of its death."""
        if self.log is None:
            return ""
        self.log.seek(0)
        lines = self.log.read().decode(errors="replace").strip().splitlines()
        return lines[-1] if lines else ""


@dataclass
class Family:
    """Started processes. They have sessions of their own: signals reach them only through here, each once."""

    children: list[_Child]
    signalled: bool = False
    failed: list[_Child] = field(default_factory=list)

    def wait(self) -> int:
        """Until all have ended; after the first failure the others get a moment, then they are ended."""
        before = {number: signal.signal(number, self._forward) for number in (signal.SIGINT, signal.SIGTERM)}
        deadline = None
        try:
            while any(child.code is None for child in self.children):
                self._poll()
                if self.failed and deadline is None:
                    deadline = time.monotonic() + GRACE
                if deadline is not None and time.monotonic() > deadline:
                    self._end()
                time.sleep(0.05)
        finally:
            self._end()
            for number, handler in before.items():
                signal.signal(number, handler)
        return self._verdict()

    def _poll(self) -> None:
        for child in self.children:
            if child.code is None:
                child.code = child.process.poll()
                if child.code:
                    self.failed.append(child)

    def _forward(self, number: int, frame: FrameType | None) -> None:
        self.signalled = True
        for child in self.children:
            if child.process.poll() is None:
                child.process.send_signal(number)

    def _end(self) -> None:
        """A process that waits for a dead one hears no polite signal; checkpoints are whole in any case."""
        for child in self.children:
            if child.process.poll() is None:
                child.process.kill()
                child.process.wait()

    def _verdict(self) -> int:
        """The exit code; a death that the main process has not explained is explained here."""
        if not self.failed:
            return 0
        codes = [int(child.code if child.code is not None else 1) for child in self.children]
        first = self.failed[0]
        code = codes[self.children.index(first)]
        if self.signalled:
            return next((code for code in STOPPED if code in codes), 1)
        if code > 0 and (first.rank == 0 or codes[0] == code):
            return code
        reason = f"was killed by signal {-code}" if code < 0 else f"ended with exit code {code}"
        detail = first.last_line()
        print(
            f"di4c: process {first.rank + 1} of {len(self.children)} {reason}, so the run stopped"
            f"{f' ({detail})' if detail else ''}. "
            "The last checkpoint is intact; run the same command again to go on.",
            file=sys.stderr,
            flush=True,
        )
        return max(code, 1)
