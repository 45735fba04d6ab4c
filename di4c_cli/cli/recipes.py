"""`di4c recipes`: list the shipped recipes by family, or show one."""

from __future__ import annotations

from typing import Annotated, Any

import typer

from di4c_cli import recipe_file
from di4c_cli.cli.console import emit, say, show_table
from di4c_cli.foreign.text import read_text
from di4c_cli.teacher import registry

FAMILIES = {
    "toy": "Toy tasks: minutes on a CPU",
    "published": "Published teachers: a GPU",
    "pretrain": "Teachers from data: `di4c pretrain`",
    "sweep": "Tables of several trainings: `di4c sweep`",
}

recipes = typer.Typer(
    help="List the shipped recipes by family; `show NAME` prints one.",
    invoke_without_command=True,
    add_completion=False,
    rich_markup_mode=None,
)


@recipes.callback()
def listing(context: typer.Context) -> None:
    """List the shipped recipes with one line each."""
    if context.invoked_subcommand is not None:
        return
    groups: dict[str, list[list[str]]] = {family: [] for family in FAMILIES}
    for name in recipe_file.names():
        tree = recipe_file.raw(name)
        groups[_family(tree)].append([name, str(tree.get("summary", ""))])
    for family, rows in groups.items():
        # one teacher's recipes stand together: the part after the slash is its name
        rows.sort(key=lambda row: (row[0].rpartition("/")[2], row[0]))
        show_table(FAMILIES[family], ["recipe", "what it does"], rows)
    say("`di4c recipes show NAME` prints one with the result to expect.")


def _family(tree: dict[str, Any]) -> str:
    """A key of FAMILIES."""
    kind = str(tree.get("kind", "distill"))
    if kind in FAMILIES:
        return kind
    entry = registry.find_entry(str(tree.get("teacher", "")))
    return "toy" if entry is not None and entry.source == "embedded" else "published"


@recipes.command()
def show(name: Annotated[str, typer.Argument(help="A name from `di4c recipes`, or a YAML file.")]) -> None:
    """Print one recipe as shipped; its head has the command, the hardware and the result to expect."""
    emit(read_text(recipe_file.find(name)).removesuffix("\n"), lines=True)
