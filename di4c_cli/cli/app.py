"""The `di4c` command: one Typer app, one file per command. Importing it does not import torch."""

from __future__ import annotations

import logging
import os
import sys
from importlib import import_module
from typing import Annotated

import typer

from di4c_cli import __version__
from di4c_cli.cli.console import drop_output, settle_streams

app = typer.Typer(
    name="di4c",
    help="Distil discrete diffusion models into students that sample in a few steps.",
    no_args_is_help=True,
    pretty_exceptions_enable=False,
    context_settings={"help_option_names": ["-h", "--help"]},
)

COMMANDS = [
    "bench-latency",
    "compare",
    "convert",
    "distill",
    "eval",
    "pretrain",
    "push",
    "recipes",
    "report",
    "sample",
    "sweep",
    "teachers",
]
"""Modules of this folder; each has a function of its own name (dashes become underscores)."""


def _version(show: bool) -> None:
    if show:
        print(f"di4c {__version__}")
        raise typer.Exit()


def _verbose(show: bool) -> None:
    if show:
        logging.basicConfig(format="%(message)s", stream=sys.stderr)
        logging.getLogger("di4c_cli").setLevel(logging.INFO)


@app.callback()
def options(
    version: Annotated[
        bool, typer.Option("--version", callback=_version, is_eager=True, help="Print the version and stop.")
    ] = False,
    verbose: Annotated[
        bool,
        typer.Option(
            "--verbose", callback=_verbose, help="Tell what became of every tensor of a loaded model."
        ),
    ] = False,
) -> None:
    """Options of `di4c` itself."""


for _name in COMMANDS:
    _module = import_module(f"di4c_cli.cli.{_name.replace('-', '_')}")
    _command = getattr(_module, _name.replace("-", "_"))
    if isinstance(_command, typer.Typer):
        app.add_typer(_command, name=_name)
    else:
        app.command(_name)(_command)


def main() -> None:
    """Console-script entry point."""
    settle_streams()
    # without a home directory matplotlib warns of the temporary folder it uses instead
    logging.getLogger("matplotlib").setLevel(logging.ERROR)
    place = _place()
    try:
        app()
    except SystemExit:
        # a reader (`head`) that has gone is no failure; Typer marks stdout then, Rich points it elsewhere
        if type(sys.stdout).__name__ != "PacifyFlushWrapper" and _place() == place:
            raise
    finally:
        _flush()


def _place() -> tuple[int, int] | None:
    """What stdout is connected to."""
    try:
        found = os.fstat(sys.stdout.fileno())
    except (OSError, ValueError, AttributeError):  # closed, or no file at all
        return None
    return found.st_dev, found.st_ino


def _flush() -> None:
    """What is still buffered may meet a closed pipe too; the interpreter would report that loudly."""
    try:
        sys.stdout.flush()
    except BrokenPipeError:
        drop_output()
