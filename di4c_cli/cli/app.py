"""The `di4c` command: one Typer app with one file per command. Importing it does not import torch."""

from __future__ import annotations

import logging
import os
import sys
from importlib import import_module
from typing import Annotated, Any

import typer
from typer.core import TyperGroup

from di4c_cli import __version__
from di4c_cli.cli.console import emit
from di4c_cli.cli.guard import edge
from di4c_cli.signals import stoppable

os.environ["MPLBACKEND"] = "agg"  # commands draw into files; matplotlib rejects an unknown value when it is imported


class GuardedGroup(TyperGroup):
    """All commands behind one guard; it sees every exception before Typer does."""

    def make_context(self, *args: Any, **options: Any) -> Any:
        """Parse the options of `di4c` itself."""
        with edge():
            return super().make_context(*args, **options)

    def invoke(self, *args: Any, **options: Any) -> Any:
        """Parse the options of a command and run it."""
        with edge():
            return super().invoke(*args, **options)


app = typer.Typer(
    name="di4c",
    cls=GuardedGroup,
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
        emit(f"di4c {__version__}")
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
        app.command(_name)(stoppable(_command))
