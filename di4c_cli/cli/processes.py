"""`--processes`: the same command in several local processes, which divide its work."""

from __future__ import annotations

import os
import sys
from typing import Annotated

import typer

from di4c_cli.training.launch import check_launcher_variables, launch, launched

Processes = Annotated[int | None, typer.Option("--processes", min=1, help="Local processes that divide the work.")]
Oversubscribe = Annotated[bool, typer.Option("--oversubscribe", help="Allow more processes than cores.")]


def launch_again(processes: int | None, device: str | None, oversubscribe: bool) -> None:
    """Run this command in several processes, if they are asked for, and end with their common exit code.

    One process returns at once, and so does a process that a launcher started.
    """
    check_launcher_variables()
    if processes is None or processes == 1 or launched():
        return
    if processes > (os.cpu_count() or 1) or device not in (None, "cpu"):
        from di4c_cli.training.processes import check_device, check_processes  # imports torch

        check_device(device, processes)
        check_processes(processes, device, oversubscribe)
    # the processes check the number of GPUs themselves: torch is imported once, not before they start
    raise typer.Exit(launch(processes, [sys.executable, "-m", "di4c_cli", *sys.argv[1:]], cpu=device == "cpu"))
