"""Who taught a student, as far as that teacher may be loaded unasked.

A student's config.json may be a stranger's. By its word alone only a name is followed that di4c or an installed
package lists; a path or Hub id must stand in the recipe.yaml of the run that the student lies in, and of the Hub
only what the cache holds already is used. Everybody else has to be named by the user.
"""

from __future__ import annotations

import re
from collections.abc import Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

COMMIT = re.compile(r"[0-9a-f]{40}")


@dataclass(frozen=True)
class Found:
    """A teacher to load: its reference, and the options it was read with when it taught."""

    ref: str
    options: dict[str, Any] = field(default_factory=dict)


def recorded_teacher(history: Mapping[str, Any]) -> str:
    """The teacher's name in a student's history; empty if it has none."""
    return str(history.get("teacher") or "")


def find_teacher(history: Mapping[str, Any], folder: Path | None) -> Found | None:
    """The teacher of the student in `folder`, if it can be told and may be loaded."""
    name = recorded_teacher(history)
    if not name:
        return None
    return _of_run(name, folder) or _of_list(name, history.get("teacher_revision"))


def _of_run(name: str, folder: Path | None) -> Found | None:
    """The run's recipe knows the path of which the history keeps the end."""
    from di4c_cli import hub

    tree = _recipe_of(folder)
    ref, weights = str(tree.get("teacher") or ""), tree.get("init_weights")
    options = {"weights": weights} if weights in ("ema", "live") else {}
    try:
        same, here = name in (ref, Path(ref).resolve().name), Path(ref).exists()
    except (OSError, ValueError):  # longer than a path may be, or with a NUL inside
        return None
    if not ref or not same:
        return None
    if here:
        return Found(ref, options)
    repo, _, revision = ref.partition("@")
    if hub.is_id(repo) and hub.is_cached(repo, hub.check_revision(revision or "main"), ["config.json"]):
        return Found(ref, {**options, "offline": True})
    return None


def _recipe_of(folder: Path | None) -> dict[str, Any]:
    """The recipe of the run that holds `folder`, itself or as a round's student; empty without one."""
    from di4c_cli.teacher import safe

    if folder is None:
        return {}
    here = folder.resolve()
    places = (here, here.parent, here.parent.parent if here.parent.name.startswith("round-") else here)
    return next((tree for place in places if (tree := safe.read_tree(place / "recipe.yaml"))), {})


def _of_list(name: str, revision: Any) -> Found | None:
    """A name of the registry, at the commit that taught, or of an installed package."""
    from di4c_cli.teacher import plugins, registry

    plain = name.partition("@")[0]
    entry = registry.entries().get(plain)
    if entry is None:
        return Found(name) if name in plugins.points() else None
    pinned = entry.source == "hub" and name == plain and COMMIT.fullmatch(str(revision))
    return Found(f"{name}@{revision}" if pinned else name)
