"""`di4c recipes`: list the shipped recipes, or show one."""

from __future__ import annotations

from typing import Annotated

import typer

from di4c_cli import recipe_file
from di4c_cli.cli.console import emit, show_table
from di4c_cli.foreign.text import read_text

recipes = typer.Typer(
    help="List the shipped recipes; `show NAME` prints one.",
    invoke_without_command=True,
    add_completion=False,
    rich_markup_mode=None,
)


@recipes.callback()
def listing(context: typer.Context) -> None:
    """List the shipped recipes with one line each."""
    if context.invoked_subcommand is not None:
        return
    rows = []
    for name in recipe_file.names():
        tree = recipe_file.raw(name)
        rows.append([name, str(tree.get("kind", "distill")), str(tree.get("summary", ""))])
    show_table("Recipes", ["name", "kind", "what it does"], rows)


@recipes.command()
def show(name: Annotated[str, typer.Argument(help="A name from `di4c recipes`, or a YAML file.")]) -> None:
    """Print one recipe as shipped."""
    emit(read_text(recipe_file.find(name)).removesuffix("\n"), lines=True)
