"""A student's teacher, as far as it may be loaded without being named by the user.

A student's config.json may come from a stranger. It alone can only name a teacher that di4c or an installed package
lists. A path or Hub id must be in the recipe.yaml of the run that holds the student, and of the Hub only what is in
the cache already is used. The user has to name every other teacher.
"""

from __future__ import annotations

import re
from collections.abc import Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from di4c_cli import hub
from di4c_cli.embedded import current_name
from di4c_cli.files import real_path
from di4c_cli.teacher import plugins, registry, safe

COMMIT_HASH = re.compile(r"[0-9a-f]{40}")


@dataclass(frozen=True)
class TeacherRef:
    """A teacher to load: its reference, and the options it was read with for training."""

    ref: str
    options: dict[str, Any] = field(default_factory=dict)


def recorded_teacher(provenance: Mapping[str, Any]) -> str:
    """The teacher's name in a student's provenance; empty if it has none."""
    return current_name(str(provenance.get("teacher") or ""))


def find_teacher(provenance: Mapping[str, Any], folder: Path | None) -> TeacherRef | None:
    """The teacher of the student in `folder`, if it is known and may be loaded."""
    name = recorded_teacher(provenance)
    if not name:
        return None
    return _from_run(name, folder) or _from_list(name, provenance.get("teacher_revision"))


def _from_run(name: str, folder: Path | None) -> TeacherRef | None:
    """The teacher in the run's recipe, which has the whole path; the provenance keeps its last part."""
    tree = _recipe_of(folder)
    ref, weights = str(tree.get("teacher") or ""), tree.get("init_weights")
    options = {"weights": weights} if weights in ("ema", "live") else {}
    try:
        same, here = name in (ref, real_path(Path(ref)).name), Path(ref).exists()
    except (OSError, ValueError):  # too long for a path, or with a NUL inside
        return None
    if not ref or not same:
        return None
    if here:
        return TeacherRef(ref, options)
    repo, _, revision = ref.partition("@")
    if hub.is_id(repo) and hub.is_cached(repo, hub.check_revision(revision or "main"), ["config.json"]):
        return TeacherRef(ref, {**options, "offline": True})
    return None


def _recipe_of(folder: Path | None) -> dict[str, Any]:
    """The recipe of the run that holds `folder`, itself or as a round's student; empty without one."""
    if folder is None:
        return {}
    here = real_path(folder)
    places = (here, here.parent, here.parent.parent if here.parent.name.startswith("round-") else here)
    return next((tree for place in places if (tree := safe.read_tree(place / "recipe.yaml"))), {})


def _from_list(name: str, revision: Any) -> TeacherRef | None:
    """A name of the registry, at the commit that was used for training, or of an installed package."""
    plain = name.partition("@")[0]
    entry = registry.find_entry(plain)
    if entry is None:
        return TeacherRef(name) if name in plugins.points() else None
    pinned = entry.source == "hub" and name == plain and COMMIT_HASH.fullmatch(str(revision))
    return TeacherRef(f"{name}@{revision}" if pinned else name)
