"""Finding, reading and overriding recipes; an error names the key's path and the nearest known name."""

from __future__ import annotations

import difflib
from collections.abc import Iterable, Mapping
from pathlib import Path
from typing import Any, TypeVar, get_args

import yaml
from pydantic import BaseModel, ValidationError

from di4c_cli.errors import UserError
from di4c_cli.latent import config as latent_config
from di4c_cli.methods import METHODS
from di4c_cli.recipe import Pretrain, Recipe
from di4c_cli.schema import Section
from di4c_cli.training import config as training_config

AnyRecipe = TypeVar("AnyRecipe", bound=Section)

OLD_FOLDERS = {"paper": "di4c", "leader": "variational"}
"""Folders of recipes in version 0.1 and their present names."""
RENAMED_SECTIONS = {"objective": "method"}
RENAMED_KEYS = {"latent": latent_config.RENAMED_KEYS, "training": training_config.RENAMED_KEYS}
"""Keys of version 0.1 in each section and the present ones."""


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
    known, name = names(), current_name(name)
    if name not in known:
        raise UserError(f"Unknown recipe '{name}'.{nearest(name, known)}", "Run `di4c recipes` to list them.")
    return folder() / f"{name}.yaml"


def current_name(name: str) -> str:
    """A recipe name of version 0.1 as it is now: `paper/tiny-digits` is `di4c/tiny-digits`."""
    folder_name, slash, base = name.partition("/")
    return f"{OLD_FOLDERS[folder_name]}/{base}" if slash and folder_name in OLD_FOLDERS else name


def with_method(name: str, method: str) -> str:
    """The recipe that trains the teacher of recipe `name` by another method."""
    if method not in METHODS:
        raise UserError(
            f"Unknown method '{method}'.{nearest(method, METHODS)}", f"Use {' or '.join(METHODS)}."
        )
    known, base = names(), current_name(name).rpartition("/")[2]
    for candidate in (f"{method}/{base}", base):
        if candidate in known and raw(candidate).get("method", {}).get("name", "di4c") == method:
            return candidate
    there = ", ".join(other for other in known if other.startswith(f"{method}/"))
    raise UserError(
        f"There is no recipe that trains the teacher of '{name}' by the method {method}.",
        f"There are {there}.",
    )


def read(name: str, overrides: Mapping[str, Any] | None = None) -> Recipe:
    """A distillation recipe, with dotted overrides applied before validation."""
    return _parse(Recipe, find(name), overrides or {})


def read_pretrain(name: str, overrides: Mapping[str, Any] | None = None) -> Pretrain:
    """A pretraining recipe."""
    return _parse(Pretrain, find(name), overrides or {})


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
            f"The recipe {path} is not readable YAML{where}.", "Fix the file or name another."
        ) from error
    if not isinstance(tree, dict):
        raise UserError(
            f"The recipe {path} holds no settings.", "Run `di4c recipes show tiny-digits` for an example."
        )
    return tree


def _parse(model: type[AnyRecipe], path: Path, overrides: Mapping[str, Any]) -> AnyRecipe:
    tree = _load(path)
    check_renamed_keys(_dotted_keys(tree), f"The recipe {path.name}")
    check_renamed_keys(overrides, "The command line")
    for dotted, value in overrides.items():
        assign(tree, dotted, value, model)
    return validate(model, tree, str(path.name))


def _dotted_keys(tree: Mapping[str, Any]) -> list[str]:
    """Keys of a raw recipe, two levels deep."""
    sections = [(key, value) for key, value in tree.items() if isinstance(value, Mapping)]
    return [*map(str, tree), *(f"{key}.{inner}" for key, value in sections for inner in value)]


def check_renamed_keys(dotted: Iterable[str], where: str) -> None:
    """Reject keys of version 0.1 in one sentence that names the present ones."""
    found: dict[str, str] = {}
    for key in dotted:
        section, _, inner = key.partition(".")
        if section in RENAMED_SECTIONS:
            found[section] = RENAMED_SECTIONS[section]
        elif (new := RENAMED_KEYS.get(section, {}).get(inner.partition(".")[0])) is not None:
            found[f"{section}.{inner}"] = f"{section}.{new}"
    if found:
        said = ", ".join(f"{old} is now {new}" for old, new in found.items())
        raise UserError(
            f"{where} has recipe keys of version 0.1: {said}.",
            "CHANGELOG.md has the table of old and new keys.",
        )


def parse_assignment(text: str) -> tuple[str, Any]:
    """`a.b=c` as a dotted key and a YAML value."""
    key, equals, value = text.partition("=")
    if not equals or not key:
        raise UserError(f"'--set {text}' is not of the form key=value.", "Example: --set method.latents=8")
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
        schema = _section(schema, part, node)
        if not isinstance(node, dict):
            raise UserError(f"Recipe key '{dotted}': '{part}' is a value, not a section.", "Set it directly.")


def _section(schema: type[BaseModel] | None, part: str, node: Any = None) -> type[BaseModel] | None:
    """The schema of a section; that of `method` is told by its key `name` in `node`."""
    if schema is None or part not in schema.model_fields:
        return None
    if schema is Recipe and part == "method":
        return METHODS.get(node.get("name", "di4c") if isinstance(node, Mapping) else "di4c")
    annotation = schema.model_fields[part].annotation
    for candidate in (annotation, *get_args(annotation)):
        if isinstance(candidate, type) and issubclass(candidate, BaseModel):
            return candidate
    return None


def validate(model: type[AnyRecipe], tree: Mapping[str, Any], where: str) -> AnyRecipe:
    """Build the recipe, or say in one sentence which key is wrong."""
    try:
        return model.model_validate(tree)
    except ValidationError as error:
        first = error.errors()[0]
        # pydantic puts the method's name into the path, which is not a key of the recipe
        keys = [
            str(key) for i, key in enumerate(first["loc"]) if not (i == 1 and first["loc"][0] == "method")
        ]
        path, said = ".".join(keys), first["msg"].removeprefix("Value error, ")
        if first["type"] == "extra_forbidden":
            owner: type[BaseModel] | None = model
            node: Any = tree
            for key in keys[:-1]:
                node = node.get(key) if isinstance(node, Mapping) else None
                owner = _section(owner, key, node)
            hint = nearest(keys[-1], owner.model_fields) if owner is not None else ""
            raise UserError(
                f"Unknown recipe key '{path}' in {where}.{hint}", "Remove or rename it."
            ) from error
        if first["type"].startswith("union_tag"):
            raise UserError(
                f"Recipe key 'method.name' in {where} must be {' or '.join(METHODS)}.", "Change that value."
            ) from error
        if not path:
            raise UserError(f"Two values of the recipe {where} do not fit together: {said}.") from error
        got = first.get("input")
        shown = f" (got {got!r})" if isinstance(got, (str, int, float, bool)) else ""
        raise UserError(f"Recipe key '{path}' in {where}: {said}{shown}.", "Change that value.") from error


def dump(recipe: Section) -> str:
    """The resolved recipe as YAML, as saved with every run."""
    return yaml.safe_dump(recipe.model_dump(mode="json"), sort_keys=False, allow_unicode=True)
