"""Writes docs/recipes.md, the reference of every recipe key, from the schema itself.

    python -m tools.make_recipes

Names, types, ranges, defaults and meanings all come from `di4c_cli.recipe`; only the introduction is here.
"""

from __future__ import annotations

import argparse
import textwrap
import types
import typing
from collections.abc import Iterator
from pathlib import Path
from typing import Annotated, Any, Literal, get_args, get_origin

from annotated_types import Ge, Gt, Le, Lt
from pydantic import BaseModel
from pydantic.fields import FieldInfo
from pydantic_core import PydanticUndefined

from di4c_cli import recipe_file
from di4c_cli.methods import METHODS
from di4c_cli.recipe import Recipe
from di4c_cli.training.pretrain_config import PretrainConfig
from di4c_cli.training.sweep_recipe import Sweep

PAGE = Path(__file__).parents[1] / "docs" / "recipes.md"
INTRODUCTION = """# Recipes

A recipe is one YAML file that describes how a teacher becomes a student. `di4c recipes` lists the shipped recipes,
and `di4c recipes show digits` prints one. Every key can be set on the command line: some have a flag, and `--set`
takes any dotted key with a YAML value and overrides everything else:

    di4c distill --recipe di4c/digits --set method.latents=8 --set method.alpha='{kind: const, scale: 0.1}'

To make your own recipe, print one into a file, change it and name the file:

    di4c recipes show digits > mine.yaml
    di4c distill --recipe mine.yaml

Recipes with the names of published models follow the paper. Those in `authors/` follow the authors' code where it
differs; [fidelity](fidelity.md) lists the differences.

An unknown key is rejected, and the message names the nearest known key. Every run folder and every student contains
the resolved recipe. `python -m tools.make_recipes` generates this page from the schema.
"""
WORDS = {int: "integer", float: "number", str: "text", bool: "true / false", type(None): "none"}
SIGNS = {Ge: ("≥", "ge"), Gt: (">", "gt"), Le: ("≤", "le"), Lt: ("<", "lt")}


def page() -> str:
    """The whole page."""
    parts = [
        INTRODUCTION,
        *sections(Recipe, "A distillation recipe"),
        *sections(PretrainConfig, "A pretraining recipe"),
    ]
    parts += [*sections(Sweep, "A sweep"), shipped()]
    return "\n".join(parts)


def sections(model: type[BaseModel], title: str) -> Iterator[str]:
    """A table for a kind of recipe and one for each of its sections, top first, none twice on a page."""
    yield f"\n## {title}\n\n{summary(model)}\n\n{table(model)}"
    shown = [] if model is Recipe else [inner for _, inner in nested(Recipe)]
    for dotted, inner in nested(model):
        if inner in shown:
            continue
        yield f"\n### `{dotted}`\n\n{summary(inner)}\n\n{table(inner)}"


def nested(model: type[BaseModel], prefix: str = "") -> Iterator[tuple[str, type[BaseModel]]]:
    """Sections by dotted key."""
    for name, field in model.model_fields.items():
        if model is Recipe and name == "method":
            for method, config in METHODS.items():
                yield f"method: {{name: {method}}}", config
                yield from nested(config, "method.")
            continue
        inner = section_of(field.annotation)
        if inner is not None:
            yield f"{prefix}{name}", inner
            yield from nested(inner, f"{prefix}{name}.")


def section_of(annotation: Any) -> type[BaseModel] | None:
    """The model behind a key, if it is a section."""
    for candidate in (annotation, *get_args(annotation)):
        if isinstance(candidate, type) and issubclass(candidate, BaseModel):
            return candidate
    return None


def table(model: type[BaseModel]) -> str:
    """Key, type, default and meaning, an item each, wrapped to the width of a page."""
    lines = []
    for name, field in model.model_fields.items():
        facts = f"{value_of(field)}; default {default_of(field)}".replace("default required", "required")
        text = f"- `{name}` ({facts}): {meaning(field)}"
        lines += textwrap.wrap(text, 100, subsequent_indent="  ", break_long_words=False, break_on_hyphens=False)
    return "\n".join(lines)


def summary(model: type[BaseModel]) -> str:
    """The class's own sentence."""
    return (model.__doc__ or "").strip().splitlines()[0]


def meaning(field: FieldInfo) -> str:
    """The description, as a sentence part."""
    return field.description or ""


def value_of(field: FieldInfo) -> str:
    """Type and range in words."""
    bounds = []
    for rule in field.metadata:
        for kind, (sign, attribute) in SIGNS.items():
            if isinstance(rule, kind):
                bounds.append(f"{sign} {recipe_value(getattr(rule, attribute))}")
    return ", ".join([type_name(field.annotation), *bounds])


def type_name(annotation: Any) -> str:
    """An annotation for people."""
    origin, arguments = get_origin(annotation), get_args(annotation)
    if section_of(annotation) is not None and origin is not list:
        return "section" if type(None) not in arguments else "section or none"
    if origin is Literal:
        return " / ".join(f"`{choice}`" for choice in arguments)
    if origin in (typing.Union, types.UnionType):
        return " or ".join(type_name(part) for part in arguments)
    if origin is Annotated:
        return type_name(arguments[0])
    if origin is list:
        return f"list of {type_name(arguments[0])}"
    if origin is tuple:
        return f"{len(arguments)} numbers"
    if origin is dict:
        return "mapping"
    return WORDS.get(annotation, getattr(annotation, "__name__", str(annotation)).lower())


def default_of(field: FieldInfo) -> str:
    """The default as one would write it in YAML; `required` where there is none."""
    if field.is_required():
        return "required"
    value = field.get_default(call_default_factory=True, validated_data={})
    if value is PydanticUndefined:
        return "required"
    if isinstance(value, BaseModel):
        value = {key: part for key, part in value.model_dump().items() if key in value.model_fields_set}
        return "`" + recipe_value(value) + "`" if value else "see below"
    return f"`{recipe_value(value)}`"


def recipe_value(value: Any) -> str:
    """A value in YAML's inline form."""
    if value is None:
        return "null"
    if isinstance(value, bool):
        return str(value).lower()
    if isinstance(value, dict):
        return "{" + ", ".join(f"{key}: {recipe_value(part)}" for key, part in value.items()) + "}"
    if isinstance(value, (list, tuple)):
        return "[" + ", ".join(map(recipe_value, value)) + "]"
    return f"{value:g}" if isinstance(value, float) else str(value)


def shipped() -> str:
    """The recipes in the package with their summaries."""
    lines = ["\n## Shipped recipes\n"]
    for name in recipe_file.names():
        tree = recipe_file.raw(name)
        text = f"- `{name}` ({tree.get('kind', 'distill')}): {tree.get('summary', '')}"
        lines += textwrap.wrap(text, 100, subsequent_indent="  ", break_long_words=False)
    return "\n".join(lines) + "\n"


if __name__ == "__main__":
    argparse.ArgumentParser(description=(__doc__ or "").splitlines()[0]).parse_args()
    PAGE.write_text(page(), encoding="utf-8")
