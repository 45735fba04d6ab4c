"""Every key of a recipe's schema with values at and beyond its limits, from the schema itself."""

from __future__ import annotations

import random
from collections.abc import Iterator
from functools import cache
from typing import Any

from pydantic import BaseModel

from di4c_cli.recipe import Recipe
from di4c_cli.training.pretrain_config import PretrainConfig
from di4c_cli.training.sweep_recipe import Sweep
from tests.hostile.mutations import TEXTS, value

KINDS: dict[str, type[BaseModel]] = {"distill": Recipe, "pretrain": PretrainConfig, "sweep": Sweep}
Tree = dict[str, Any]


@cache
def settings(kind: str, method: str = "di4c") -> dict[str, list[Any]]:
    """Dotted keys of a kind of recipe with a training method, and for each the values at its limits."""
    schema = KINDS[kind].model_json_schema()
    found: dict[str, list[Any]] = {}
    for key, values in _walk(schema, schema.get("$defs", {}), "", method):
        found[key] = [*found.get(key, []), *values]
    return found


def _walk(node: Tree, defs: dict[str, Tree], key: str, method: str) -> Iterator[tuple[str, list[Any]]]:
    mapping = node.get("discriminator", {}).get("mapping", {})
    if "$ref" in node or mapping:
        name = mapping.get(method, node.get("$ref")) or next(iter(mapping.values()))
        node = defs[name.rpartition("/")[2]]
    for part in node.get("anyOf", []):
        yield from _walk(part, defs, key, method)
    for name, part in node.get("properties", {}).items():
        yield from _walk(part, defs, f"{key}.{name}" if key else name, method)
    if key:
        yield key, _limits(node)


def _limits(node: Tree) -> list[Any]:
    """Values at the limits of a field, and one step beyond them."""
    kind = node.get("type")
    if "enum" in node or "const" in node:
        return [*node.get("enum", [node.get("const")]), "x"]
    if kind in ("integer", "number"):
        low = node.get("minimum", node.get("exclusiveMinimum", -(10**9)))
        high = node.get("maximum", node.get("exclusiveMaximum", 10**9))
        return [low, high, low - 1, high + 1, (low + high) / 2 if kind == "number" else (low + high) // 2]
    return {
        "boolean": [True, False],
        "string": TEXTS[:12],
        "array": [[], [1], [1] * 5000, ["x"]],
        "object": [{}, {"a": 1}],
        "null": [None],
    }.get(str(kind), [])


def set_limit(tree: Tree, rng: random.Random) -> str:
    """One or two values of a recipe at the limits of their fields; returns what was set."""
    method = tree.get("method")
    name = method.get("name", "di4c") if isinstance(method, dict) else "di4c"
    known = settings(tree["kind"], name)
    story = []
    for _ in range(rng.choice([1, 1, 2])):
        key = rng.choice(sorted(known))
        *path, last = key.split(".")
        node = tree
        for part in path:
            if not isinstance(node.get(part), dict):
                node[part] = {}
            node = node[part]
        node[last] = rng.choice(known[key]) if known[key] else value(rng)
        story.append(f"{key}={str(node[last])[:40]}")
    return ", ".join(story)
