"""`di4c pretrain`: train the teacher of a toy task from its recipe and the embedded data."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated, Any

import typer

from di4c_cli import recipe_file
from di4c_cli.cli.console import command_line, say
from di4c_cli.errors import UserError


def pretrain(
    recipe: Annotated[
        str, typer.Option(help="A pretraining recipe; `di4c recipes` lists them.")
    ] = "pretrain/tiny-digits",
    out: Annotated[Path | None, typer.Option(help="Folder to write; default: pretrained/<task>.")] = None,
    iterations: Annotated[int | None, typer.Option(min=1, help="Training steps of the teacher.")] = None,
    seed: Annotated[int | None, typer.Option(min=0, help="Seed of weights and data order.")] = None,
) -> None:
    """Train the teacher of a toy task from scratch with early stopping on held-out data."""
    if recipe_file.kind_of(recipe) != "pretrain":
        raise UserError(f"'{recipe}' is not a pretraining recipe.", "Use `di4c distill` for it.")
    overrides = {"training.iterations": iterations, "seed": seed}
    config = recipe_file.read_pretrain(recipe, {key: value for key, value in overrides.items() if value is not None})
    folder = out or Path("pretrained") / config.task
    if folder.exists() and any(folder.iterdir()):
        raise UserError(f"{folder} is not empty.", "Name another folder with --out.")

    from di4c_cli.training.pretrain import pretrain as train_teacher

    def report(row: dict[str, Any]) -> None:
        texts = {key: f"{value:.4g}" if isinstance(value, float) else value for key, value in row.items()}
        say("  ".join(f"{key} {text}" for key, text in texts.items()))

    history = train_teacher(config, folder, report)
    say(f"{folder / 'teacher'}: held-out loss {history.best:.4f} nats per unknown position (step {history.best_step}).")
    say("Next: " + command_line("di4c", "sample", "--teacher", folder / "teacher", "--steps", 16))
