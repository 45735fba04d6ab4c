"""Names to models: embedded teachers and students, folders, files, and the Hub."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING, Any

from di4c_cli import embedded
from di4c_cli.errors import UserError
from di4c_cli.recipe_file import nearest

if TYPE_CHECKING:
    from di4c_cli.model import Model


def resolve(ref: str, **options: Any) -> Model:
    """The model a reference names."""
    from di4c_cli.model import load_folder

    world, kind = (ref.removesuffix("-student"), "student") if ref.endswith("-student") else (ref, "teacher")
    if world in embedded.WORLDS:
        return load_folder(embedded.model(world, kind))
    if Path(ref).is_dir():
        folder = Path(ref)
        return load_folder(folder / "student" if (folder / "student" / "config.json").is_file() else folder)
    known = [*embedded.WORLDS, *(f"{name}-student" for name in embedded.WORLDS)]
    raise UserError(f"Unknown teacher '{ref}'.{nearest(ref, known)}", "Run `di4c teachers` to list the known ones.")
