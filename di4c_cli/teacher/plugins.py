"""Teachers that other packages add, through the entry-point group `di4c.teachers`.

An entry point is either a function `(LoadOptions) -> Bundle`, which adds a teacher under its own name, or
a format: a module with `NAME`, `detect(source)` and `read(source, options)`, which adds a kind of file.
"""

from __future__ import annotations

import logging
from collections.abc import Callable
from importlib.metadata import EntryPoint, entry_points
from types import ModuleType
from typing import Any

from di4c_cli.errors import Failure
from di4c_cli.teacher import registry
from di4c_cli.teacher.bundle import Bundle, LoadOptions

ENTRY_POINT_GROUP = "di4c.teachers"


def points() -> dict[str, EntryPoint]:
    """Installed entry points by name; nothing is imported for this."""
    return {point.name: point for point in entry_points(group=ENTRY_POINT_GROUP)}


def loaded(point: EntryPoint) -> Any:
    """The object behind an entry point; an import error becomes one sentence that names the package."""
    try:
        return point.load()
    except Exception as error:  # a foreign import may raise anything
        package = point.dist.name if point.dist else point.value
        problem = f"The teacher '{point.name}' of the package {package} cannot be imported: {error}."
        raise Failure(problem, "Fix or uninstall that package.") from error


def is_format(thing: Any) -> bool:
    """Whether an entry point adds a format and not a name."""
    return hasattr(thing, "detect") and hasattr(thing, "read")


def formats() -> tuple[ModuleType, ...]:
    """All formats that packages add."""
    return tuple(thing for thing in map(loaded, points().values()) if is_format(thing))


def read(name: str, options: LoadOptions) -> Bundle | None:
    """The teacher that a package adds under this name, or None."""
    point = points().get(name)
    if point is None:
        return None
    if registry.find_entry(name) is not None:
        package = point.dist.name if point.dist else point.value
        logging.getLogger(__name__).warning(
            f"'{name}' is di4c's own model; the one of the package {package} is ignored."
        )
        return None
    thing = loaded(point)
    if is_format(thing):
        return None
    call: Callable[[LoadOptions], Bundle] = thing
    return call(options)
