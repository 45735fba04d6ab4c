"""`di4c push`: uploads a run's student or a model folder to the Hub."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

import typer

from di4c_cli.cli.console import emit, say


def push(
    source: Annotated[Path, typer.Argument(help="A run or a model folder.")],
    repo: Annotated[str, typer.Argument(help="user/name on the Hub; created if it does not exist.")],
    private: Annotated[bool, typer.Option("--private", help="Create the repository as a private one.")] = False,
    revision: Annotated[str | None, typer.Option(help="Branch to write to; created if necessary.")] = None,
) -> None:
    """Upload a student with its card; `di4c_cli.load("user/name")` loads it again. Needs HF_TOKEN."""
    from di4c_cli.publish import publish

    emit(publish(source, repo, private, revision))
    say(f"  di4c sample --student {repo}{'@' + revision if revision else ''}")
