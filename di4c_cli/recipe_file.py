"""Finding, reading and overriding recipes; an error names the key's path and the nearest known name."""

from __future__ import annotations

import difflib
from collections.abc import Iterable, Mapping
from pathlib import Path
from typing import Any, TypeVar, get_args

import yaml
from pydantic import BaseModel, ValidationError

from di4c_cli import embedded
from di4c_cli.errors import UserError
from di4c_cli.foreign.structured import StructureError, parse_yaml, read_yaml
from di4c_cli.latent import config as latent_config
from di4c_cli.methods import DEFAULT_METHOD, METHODS
from di4c_cli.recipe import Recipe
from di4c_cli.sampler import config as sampling_config
from di4c_cli.schema import Section
from di4c_cli.training import config as training_config
from di4c_cli.training.pretrain_config import PretrainConfig, check_start

AnyRecipe = TypeVar("AnyRecipe", bound=Section)

OLD_FOLDERS = {"paper": "di4c", "leader": "variational"}
"""Folders of recipes in version 0.1 and their present names."""
RENAMED_KEYS = {
    "objective.posterior.width": "method.encoder_width",
    "objective.posterior.draws": "method.iwae_samples",
    "objective.posterior.floor": "method.kl_weight.start",
    "objective.posterior.rise": "method.kl_weight.anneal_from and method.kl_weight.anneal_until",
    "objective.posterior": "method with name: variational",
    "objective.reference": "data: teacher",
    "objective": "method",
    "world": "task",
    "time_low": "method.time.low",
    "vqgan": "an argument of tools/make_task_assets.py",
    **{f"latent.{old}": f"latent.{new}" for old, new in latent_config.RENAMED_KEYS.items()},
    **{f"sampling.{old}": f"sampling.{new}" for old, new in sampling_config.RENAMED_KEYS.items()},
    **{f"training.{old}": f"training.{new}" for old, new in training_config.RENAMED_KEYS.items()},
}
"""Keys of version 0.1 and the present ones; the longest match counts."""


def folder() -> Path:
    """Where the shipped recipes are: inside the wheel, or beside the package in a checkout."""
    package = Path(__file__).parent
    inside = package / "recipes"
    return inside if inside.is_dir() else package.parent / "recipes"


def names() -> list[str]:
    """Shipped recipe names; sub-folders give names with a slash."""
    return sorted(_shipped())


def _shipped() -> dict[str, Path]:
    """The shipped files by the present names of their recipes."""
    root = folder()
    return {
        current_name(path.relative_to(root).with_suffix("").as_posix()): path for path in sorted(root.rglob("*.yaml"))
    }


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
    known, name = _shipped(), ask_name(name)
    if name not in known:
        raise UserError(f"Unknown recipe '{name}'.{nearest(name, known)}", "Run `di4c recipes` to list them.")
    return known[name]


def current_name(name: str) -> str:
    """A recipe name of version 0.1 as it is now: `paper/tiny-digits` is `di4c/digits`."""
    folder_name, slash, base = embedded.current_name(name).partition("/")
    return f"{OLD_FOLDERS.get(folder_name, folder_name)}/{base}" if slash else folder_name


def ask_name(name: str) -> str:
    """As `current_name`, for a name that the user gave: a warning tells the new one."""
    return embedded.ask_name(name, current_name(name))


def with_method(name: str, method: str) -> str:
    """The recipe that trains the teacher of recipe `name` by another method."""
    if method not in METHODS:
        raise UserError(f"Unknown method '{method}'.{nearest(method, METHODS)}", f"Use {' or '.join(METHODS)}.")
    if name.endswith((".yaml", ".yml")) and method_name(raw(name)) == method:
        return name
    known, base = names(), current_name(name).rpartition("/")[2]
    for candidate in (f"{method}/{base}", base):
        if candidate in known and method_name(raw(candidate)) == method:
            return candidate
    there = ", ".join(other for other in known if other.startswith(f"{method}/"))
    raise UserError(
        f"There is no recipe that trains the teacher of '{name}' by the method {method}.", f"There are {there}."
    )


def method_name(tree: Any) -> str:
    """The method of a raw recipe."""
    section = tree.get("method") if isinstance(tree, Mapping) else None
    name = section.get("name") if isinstance(section, Mapping) else None
    return name if isinstance(name, str) else DEFAULT_METHOD


def read(name: str, overrides: Mapping[str, Any] | None = None) -> Recipe:
    """A distillation recipe, with dotted overrides applied before validation."""
    return _parse(Recipe, find(name), overrides or {})


def start_recipe(recipe: Recipe) -> Recipe | None:
    """The recipe of the student with which a run begins: same information, λ, precision and seed."""
    if recipe.start is None:
        return None
    training = recipe.training
    first = read(
        recipe.start.recipe,
        {
            "teacher": recipe.teacher,
            "data": recipe.data,
            "seed": recipe.seed,
            "init_weights": recipe.init_weights,
            "latent": recipe.latent.model_dump(mode="json"),
            "training.iterations": max(1, round(recipe.start.iterations * training.iterations)),
            "training.label_dropout": training.label_dropout,
            "training.precision": training.precision,
        },
    )
    if first.start is not None or first.rounds > 1:
        raise UserError(f"The recipe {first.name} cannot be a start: it has one itself, or rounds.", "Name another.")
    return first


def read_pretrain(name: str, overrides: Mapping[str, Any] | None = None) -> PretrainConfig:
    """A pretraining recipe; what describes its model is left out if a model to start from is named."""
    given = dict(overrides or {})
    if given.get("teacher") is not None:
        try:
            check_start([key for key, value in given.items() if value is not None])
        except ValueError as error:
            raise UserError(f"{str(error)[0].upper()}{str(error)[1:]}.", "Leave one of them out.") from error
        given |= {"network": {}, "process": {}, "codec": {}, "sampling": {}, "labels": None, "tokenizer": None}
    return _parse(PretrainConfig, find(name), given)


def raw(name: str) -> dict[str, Any]:
    """A recipe file as it stands, before validation."""
    return _load(find(name))


def kind_of(name: str) -> str:
    """`distill`, `pretrain` or `sweep`."""
    return str(raw(name).get("kind", "distill"))


def _load(path: Path) -> dict[str, Any]:
    tree = read_yaml(path, "recipe")
    if not isinstance(tree, dict):
        raise UserError(f"The recipe {path} holds no settings.", "Run `di4c recipes show fashion` for an example.")
    return tree


def _parse(model: type[AnyRecipe], path: Path, overrides: Mapping[str, Any]) -> AnyRecipe:
    tree = _load(path)
    check_renamed_keys(dotted_keys(tree), f"The recipe {path.name}")
    check_renamed_keys(overrides, "The command line")
    if model is Recipe:
        # the keys of a recipe belong to its method
        name, own = overrides.get("method.name"), method_name(tree)
        if name not in (None, own):
            raise UserError(
                f"--set method.name={name} does not fit a recipe of the method {own}.",
                f"Use --method {name}, which chooses a recipe of that method.",
            )
    for dotted, value in overrides.items():
        assign(tree, dotted, value, model)
    if model is Recipe and isinstance(tree.setdefault("method", {}), dict):
        tree["method"].setdefault("name", DEFAULT_METHOD)
    return validate(model, tree, str(path.name))


def dotted_keys(tree: Mapping[Any, Any], prefix: str = "") -> list[str]:
    """Keys of a raw recipe, three levels deep."""
    found = []
    for key, value in tree.items():
        found.append(f"{prefix}{key}")
        if isinstance(value, Mapping) and prefix.count(".") < 2:
            found += dotted_keys(value, f"{prefix}{key}.")
    return found


def check_renamed_keys(dotted: Iterable[str], where: str, hint: str = "Use the new keys.") -> None:
    """Reject keys of version 0.1 in one sentence that names the present ones."""
    found: dict[str, str] = {}
    for key in dotted:
        parts = key.split(".")
        for length in range(len(parts), 0, -1):
            old = ".".join(parts[:length])
            if old in RENAMED_KEYS:
                found[old] = RENAMED_KEYS[old]
                break
    if found:
        said = "; ".join(f"{old} is now {new}" for old, new in found.items())
        raise UserError(f"{where} has keys of version 0.1: {said}.", hint)


def parse_assignment(text: str) -> tuple[str, Any]:
    """`a.b=c` as a dotted key and a YAML value."""
    key, equals, value = text.partition("=")
    if not equals or not key:
        raise UserError(f"'--set {text}' is not of the form key=value.", "Example: --set method.latents=8")
    try:
        return key.strip(), parse_yaml(value)
    except StructureError as error:
        problem = f"The value in '--set {text[:100]}' is not readable: {error}."
        raise UserError(problem, "Quote it or write a plain value.") from error


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
                "Run `di4c recipes show fashion` to see the keys.",
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
        return METHODS.get(method_name({"method": node}))
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
        keys = _recipe_keys(model, tree, first["loc"])
        path, said = ".".join(keys), first["msg"].removeprefix("Value error, ")
        if first["type"] == "extra_forbidden":
            owner: type[BaseModel] | None = model
            node: Any = tree
            for key in keys[:-1]:
                node = node.get(key) if isinstance(node, Mapping) else None
                owner = _section(owner, key, node)
            hint = nearest(keys[-1], owner.model_fields) if owner is not None else ""
            raise UserError(f"Unknown recipe key '{path}' in {where}.{hint}", "Remove or rename it.") from error
        if first["type"].startswith("union_tag"):
            raise UserError(
                f"Recipe key 'method.name' in {where} must be {' or '.join(METHODS)}.", "Change that value."
            ) from error
        if not path:
            raise UserError(f"Two values of the recipe {where} do not fit together: {said}.") from error
        got = first.get("input")
        shown = f" (got {got!r})" if isinstance(got, (str, int, float, bool)) else ""
        raise UserError(f"Recipe key '{path}' in {where}: {said}{shown}.", "Change that value.") from error


def _recipe_keys(model: type[BaseModel], tree: Mapping[str, Any], loc: Iterable[Any]) -> list[str]:
    """The path of an error in the recipe; pydantic adds names of methods and of types, which are not keys."""
    keys: list[str] = []
    owner: type[BaseModel] | None = model
    node: Any = tree
    for part in map(str, loc):
        inside = isinstance(node, Mapping) and part in node
        if owner is not None and part not in owner.model_fields and not inside:
            continue
        if owner is None and not inside and not part.isdigit():
            continue
        keys.append(part)
        node = node.get(part) if isinstance(node, Mapping) else None
        owner = _section(owner, part, node)
    return keys


def dump(recipe: Section) -> str:
    """The resolved recipe as YAML, as saved with every run."""
    return yaml.safe_dump(recipe.model_dump(mode="json"), sort_keys=False, allow_unicode=True)
