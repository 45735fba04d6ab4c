"""The `di4c` command: one Typer app with one file per command, imported when the command is called."""

from __future__ import annotations

import logging
import os
import shutil
import sys
from importlib import import_module
from typing import Annotated, Any, NamedTuple

import typer
from typer.core import TyperGroup

from di4c_cli import __version__
from di4c_cli.cli.console import emit
from di4c_cli.cli.guard import edge
from di4c_cli.signals import stoppable

os.environ["MPLBACKEND"] = "agg"  # commands draw into files; matplotlib rejects an unknown value when it is imported


class CommandHelp(NamedTuple):
    """What the help says of a command whose module is not imported for it."""

    line: str
    example: str


COMMANDS = {
    "distill": CommandHelp("Distil a teacher into a few-step student.", "di4c distill --teacher fashion --seed 1"),
    "sample": CommandHelp("Draw samples from a student or a teacher.", "di4c sample --steps 2 --label all -n 30"),
    "eval": CommandHelp("Measure quality against sampling steps.", "di4c eval --steps 1,2,4 -n 500"),
    "bench-latency": CommandHelp("Time teacher and student in turn.", "di4c bench-latency --steps 4"),
    "teachers": CommandHelp("List the teachers and students known by name.", "di4c teachers sdtt-7"),
    "recipes": CommandHelp("List the shipped recipes, or show one.", "di4c recipes show fashion"),
    "pretrain": CommandHelp("Train a teacher from data.", "di4c pretrain --recipe pretrain/fashion"),
    "convert": CommandHelp("Convert a foreign checkpoint to a model folder.", "di4c convert mdlm models/mdlm"),
    "push": CommandHelp("Upload a student to the Hugging Face Hub.", "di4c push runs/mine user/my-student"),
    "compare": CommandHelp("Compare result files.", "di4c compare a/results.json b/results.json"),
    "report": CommandHelp("Draw the page of results again.", "di4c report runs/mine"),
    "sweep": CommandHelp("Train and measure one recipe with several values.", "di4c sweep ablations/latents"),
    "theory": CommandHelp("Check the paper's theorems by enumeration.", "di4c theory --out theory"),
}
"""Each command is a function, or a Typer app, in the module of the same name, with underscores for dashes."""
GREETING = """\
di4c distils a discrete diffusion model into a student that samples in a few steps. Three commands to try:

  di4c sample --steps 2 --label all     pictures of the student that ships with di4c
  di4c eval                             its quality against that of its teacher, step by step
  di4c distill                          train a student like it, in a few minutes on a CPU

`di4c --help` lists all commands."""

HELP_WIDTH = 100


class GuardedGroup(TyperGroup):
    """All commands behind one guard, which sees every exception before Typer does; none is imported before its use."""

    def __init__(self, **options: Any) -> None:
        super().__init__(**options)
        self.commands = dict.fromkeys(COMMANDS)  # type: ignore[assignment]  # filled by get_command

    def get_command(self, ctx: Any, cmd_name: str) -> Any:
        """The command, imported now."""
        if cmd_name in COMMANDS and self.commands[cmd_name] is None:
            self.commands[cmd_name] = load_command(cmd_name)
        return super().get_command(ctx, cmd_name)

    def format_commands(self, ctx: Any, formatter: Any) -> None:
        """The list of commands in the help, without importing them."""
        with formatter.section("Commands"):
            formatter.write_dl([(name, found.line) for name, found in COMMANDS.items()])

    def parse_args(self, ctx: Any, args: list[str]) -> Any:
        """Options of `di4c` itself; without a word the command greets."""
        if not args and not ctx.resilient_parsing:
            emit(GREETING, lines=True)
            ctx.exit()
        return super().parse_args(ctx, args)

    def make_context(self, *args: Any, **options: Any) -> Any:
        """Parse the options of `di4c` itself."""
        with edge():
            return super().make_context(*args, **options)

    def invoke(self, *args: Any, **options: Any) -> Any:
        """Parse the options of a command and run it."""
        with edge():
            return super().invoke(*args, **options)


def load_command(name: str) -> Any:
    """Import a command and make it Typer's."""
    word = name.replace("-", "_")
    found = getattr(import_module(f"di4c_cli.cli.{word}"), word)
    epilog = f"\b\nExample:\n  {COMMANDS[name].example}"
    if isinstance(found, typer.Typer):
        own, found.info.epilog = found, epilog
    else:
        own = typer.Typer(add_completion=False, rich_markup_mode=None)
        own.command(name, epilog=epilog)(stoppable(found))
    command = typer.main.get_command(own)
    command.name = name
    plain = command.get_help
    command.get_help = lambda ctx: encodable(plain(ctx))  # type: ignore[method-assign]
    return command


def encodable(text: str) -> str:
    """A text with escapes for what stdout cannot show; Click would write it in UTF-8 all the same."""
    encoding = sys.stdout.encoding or "utf-8"
    return text.encode(encoding, "backslashreplace").decode(encoding)


# help without Rich, whose import takes as long as everything else that the help imports
app = typer.Typer(
    name="di4c",
    cls=GuardedGroup,
    help="Distil a discrete diffusion model into a student that samples in a few steps.",
    rich_markup_mode=None,
    pretty_exceptions_enable=False,
    context_settings={
        "help_option_names": ["-h", "--help"],
        "terminal_width": min(HELP_WIDTH, shutil.get_terminal_size().columns),
    },
)


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
