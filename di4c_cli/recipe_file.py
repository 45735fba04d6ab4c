"""Finding, reading and overriding recipes; every mistake is answered with the key's path and the nearest name."""

from __future__ import annotations

import difflib
from collections.abc import Iterable, Mapping
from pathlib import Path
from typing import Any, TypeVar, get_args

import yaml
from pydantic import BaseModel, ValidationError

from di4c_cli.errors import UserError
from di4c_cli.recipe import Part, Recipe
from di4c_cli.tasks.config import PretrainConfig

AnyRecipe = TypeVar("AnyRecipe", bound=BaseModel)


class _Loader(yaml.SafeLoader):
    """YAML 1.2 floats: `1e-5` is a number (PyYAML follows 1.1, where it is a string)."""


_Loader.add_implicit_resolver(
    "tag:yaml.org,2002:float",
    __import__("re").compile(
        r"^[-+]?(?:[0-9][0-9_]*\.[0-9_]*(?:[eE][-+]?[0-9]+)?|[0-9]+[eE][-+]?[0-9]+|\.[0-9]+(?:[eE][-+]?[0-9]+)?"
        r"|\.(?:inf|Inf|INF)|\.(?:nan|NaN|NAN))$"
    ),
    list("-+0123456789."),
)


def folder() -> Path:
    """Where the shipped recipes are: inside the wheel, or beside the package in a checkout."""
    package = Path(__file__).parent
    inside = package / "recipes"
    return inside if inside.is_dir() else package.parent / "recipes"


def names() -> list[str]:
    """Shipped recipe names; sub-folders give names with a slash."""
    root = folder()
    return sorted(path.relative_to(root).with_suffix("").as_posix() for path in root.rglob("*.yaml"))


def nearest(word: str, known: Iterable[str]) -> str:
    """ " Did you mean 'x'?" for a mistyped word, or nothing."""
    close = difflib.get_close_matches(word, list(known), n=1, cutoff=0.5)
    return f" Did you mean '{close[0]}'?" if close else ""


def find(name: str) -> Path:
    """A recipe by shipped name or by path of a YAML file."""
    path = Path(name)
    if path.suffix in (".yaml", ".yml"):
        if not path.is_file():
            raise UserError(f"There is no recipe file '{name}'.", "Run `di4c recipes` for the shipped ones.")
        return path
    known = names()
    if name not in known:
        raise UserError(f"Unknown recipe '{name}'.{nearest(name, known)}", "Run `di4c recipes` to list them.")
    return folder() / f"{name}.yaml"


PRESETS = ("paper", "leader")
"""Folders of recipes that train the same teachers another way."""


def with_preset(name: str, preset: str) -> str:
    """The recipe `name` in a preset's way: `paper/tiny-digits`. A recipe that is that way already is itself."""
    if preset not in PRESETS:
        raise UserError(f"Unknown preset '{preset}'.{nearest(preset, PRESETS)}", "Use paper or leader.")
    base, known = name.rpartition("/")[2], names()
    if f"{preset}/{base}" in known:
        return f"{preset}/{base}"
    # without a counterpart a recipe is the paper's, or the leader of an embedded world
    own = "leader" if f"paper/{base}" in known else "paper"
    if base in known and preset == own:
        return base
    there = ", ".join(other for other in known if other.startswith(f"{preset}/"))
    raise UserError(f"The recipe '{name}' has no preset '{preset}'.", f"There are {there}.")


def read(name: str, overrides: Mapping[str, Any] | None = None) -> Recipe:
    """A distillation recipe, with dotted overrides applied before validation."""
    return _parse(Recipe, find(name), overrides or {})


def read_pretrain(name: str, overrides: Mapping[str, Any] | None = None) -> PretrainConfig:
    """A pretraining recipe."""
    return _parse(PretrainConfig, find(name), overrides or {})


def raw(name: str) -> dict[str, Any]:
    """A recipe file as it stands, before validation."""
    return _load(find(name))


def kind_of(name: str) -> str:
    """`distill`, `pretrain` or `sweep`."""
    return str(raw(name).get("kind", "distill"))


def _load(path: Path) -> dict[str, Any]:
    try:
        tree = yaml.load(path.read_text(encoding="utf-8"), Loader=_Loader)
    except (yaml.YAMLError, UnicodeDecodeError, OSError) as error:
        line = getattr(getattr(error, "problem_mark", None), "line", None)
        where = f" (line {line + 1})" if line is not None else ""
        raise UserError(
            f"The recipe {path} is not readable YAML{where}.", "Mend it or name another."
        ) from error
    if not isinstance(tree, dict):
        raise UserError(
            f"The recipe {path} holds no settings.", "Run `di4c recipes show tiny-digits` for an example."
        )
    return tree


def _parse(model: type[AnyRecipe], path: Path, overrides: Mapping[str, Any]) -> AnyRecipe:
    tree = _load(path)
    for dotted, value in overrides.items():
        assign(tree, dotted, value, model)
    return validate(model, tree, str(path.name))


def parse_assignment(text: str) -> tuple[str, Any]:
    """`a.b=c` as a dotted key and a YAML value."""
    key, equals, value = text.partition("=")
    if not equals or not key:
        raise UserError(f"'--set {text}' is not of the form key=value.", "Example: --set objective.latents=8")
    try:
        return key.strip(), yaml.load(value, Loader=_Loader)
    except yaml.YAMLError as error:
        raise UserError(
            f"The value in '--set {text}' is not readable.", "Quote it or write a plain value."
        ) from error


def assign(tree: dict[str, Any], dotted: str, value: Any, model: type[BaseModel] = Recipe) -> None:
    """Set a dotted key in a raw recipe; the path is checked against the schema."""
    parts = dotted.split(".")
    node: Any = tree
    schema: type[BaseModel] | None = model
    for depth, part in enumerate(parts):
        if schema is not None and part not in schema.model_fields:
            place = ".".join(parts[:depth]) or "the recipe"
            raise UserError(
                f"Unknown recipe key '{dotted}': {place} has no '{part}'.{nearest(part, schema.model_fields)}",
                "Run `di4c recipes show tiny-digits` to see the keys.",
            )
        if depth == len(parts) - 1:
            node[part] = value
            return
        if node.get(part) is None:
            node[part] = {}
        node = node[part]
        schema = _section(schema, part)
        if not isinstance(node, dict):
            raise UserError(f"Recipe key '{dotted}': '{part}' is a value, not a section.", "Set it directly.")


def _section(schema: type[BaseModel] | None, part: str) -> type[BaseModel] | None:
    if schema is None:
        return None
    annotation = schema.model_fields[part].annotation
    for candidate in (annotation, *get_args(annotation)):
        if isinstance(candidate, type) and issubclass(candidate, BaseModel):
            return candidate
    return None


def validate(model: type[AnyRecipe], tree: Mapping[str, Any], where: str) -> AnyRecipe:
    """Build the recipe or say in one sentence which key is wrong."""
    try:
        return model.model_validate(tree)
    except ValidationError as error:
        first = error.errors()[0]
        path = ".".join(str(piece) for piece in first["loc"])
        if first["type"] == "extra_forbidden":
            owner: type[BaseModel] | None = model
            for piece in first["loc"][:-1]:
                owner = (
                    _section(owner, str(piece)) if owner is not None and piece in owner.model_fields else None
                )
            hint = nearest(str(first["loc"][-1]), owner.model_fields) if owner is not None else ""
            raise UserError(
                f"Unknown recipe key '{path}' in {where}.{hint}", "Remove or rename it."
            ) from error
        said = first["msg"].removeprefix("Value error, ")
        if not path:
            raise UserError(f"Two values of the recipe {where} do not go together: {said}.") from error
        got = first.get("input")
        shown = f" (got {got!r})" if isinstance(got, (str, int, float, bool)) else ""
        raise UserError(f"Recipe key '{path}' in {where}: {said}{shown}.", "Change that value.") from error


def dump(recipe: Part) -> str:
    """The resolved recipe as YAML, as saved with every run."""
    return yaml.safe_dump(recipe.model_dump(mode="json"), sort_keys=False, allow_unicode=True)
