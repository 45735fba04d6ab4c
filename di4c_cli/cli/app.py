"""The `di4c` command: one Typer app with one file per command. Importing it does not import torch."""

from __future__ import annotations

import logging
import os
import sys
from importlib import import_module
from typing import Annotated

import typer

from di4c_cli import __version__
from di4c_cli.cli.console import drop_output, guarded, settle_streams

app = typer.Typer(
    name="di4c",
    help="Distil a discrete diffusion model into a student that samples in a few steps.",
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
    "theory",
]
"""Each command is a function in the module of the same name, with underscores for dashes."""


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
        bool, typer.Option("--version", callback=_version, is_eager=True, help="Print the version and exit.")
    ] = False,
    verbose: Annotated[
        bool, typer.Option("--verbose", callback=_verbose, help="Show how every tensor of a model was loaded.")
    ] = False,
) -> None:
    """Options of `di4c` itself."""


for _name in COMMANDS:
    _module = import_module(f"di4c_cli.cli.{_name.replace('-', '_')}")
    _command = getattr(_module, _name.replace("-", "_"))
    if isinstance(_command, typer.Typer):
        app.add_typer(_command, name=_name)
    else:
        app.command(_name)(guarded(_command))


def main() -> None:
    """Console-script entry point."""
    settle_streams()
    # without a home directory matplotlib warns about its temporary folder
    logging.getLogger("matplotlib").setLevel(logging.ERROR)
    destination = _stdout_destination()
    try:
        app()
    except SystemExit:
        # a reader (`head`) that closed the pipe is no failure; Typer then wraps stdout, Rich redirects it
        if type(sys.stdout).__name__ != "PacifyFlushWrapper" and _stdout_destination() == destination:
            raise
    finally:
        _flush()


def _stdout_destination() -> tuple[int, int] | None:
    """Device and inode of stdout."""
    try:
        found = os.fstat(sys.stdout.fileno())
    except (OSError, ValueError, AttributeError):  # closed, or not a file
        return None
    return found.st_dev, found.st_ino


def _flush() -> None:
    """Flush stdout; at exit the interpreter would print a traceback if the pipe is closed."""
    try:
        sys.stdout.flush()
    except BrokenPipeError:
        drop_output()
