"""JSON and YAML of any origin as plain values: text keys, finite numbers, bounded size, depth and number of values.

Dates stay text. YAML's other tags and merge keys are rejected; an alias counts as the values it stands for.
"""

from __future__ import annotations

import json
import math
import re
from collections import Counter
from itertools import accumulate
from pathlib import Path
from typing import Any

import yaml

from di4c_cli.errors import UserError
from di4c_cli.foreign import regular

MAX_JSON_BYTES = 50 * 2**20
"""A results.json of a large evaluation has a few megabytes."""
MAX_YAML_BYTES = 2**17
"""PyYAML reads about 100 kB a second; the longest recipe has 5 kB."""
MAX_DEPTH = 200
"""A config.json after many rounds nests two levels per round."""
MAX_VALUES = 5_000_000
"""A value takes about 100 bytes in memory; the tokenizer.json with the largest vocabulary has 2 million values."""
MAX_DIGITS = 20
"""Integers of 64 bits have at most 20 digits; longer ones overflow in numpy and torch."""
FIX_FILE = "Fix the file or name another."


class StructureError(ValueError):
    """What is wrong with a JSON or YAML text, as the end of a sentence."""


def read_json(path: Path, limit: int = MAX_JSON_BYTES, what: str = "JSON file", hint: str = FIX_FILE) -> Any:
    """A JSON file; `what` it should be stands in the error."""
    content = regular.read_bytes(path, limit, what)
    try:
        return parse_json(content)
    except StructureError as error:
        raise UserError(f"{path} is not a readable {what}: {error}.", hint) from error


def read_yaml(path: Path, what: str = "YAML file") -> Any:
    """A YAML file; floats are those of YAML 1.2."""
    content = regular.read_bytes(path, MAX_YAML_BYTES, what)
    try:
        return parse_yaml(content)
    except StructureError as error:
        raise UserError(f"{path} is not a readable {what}: {error}.", FIX_FILE) from error


def parse_json(content: bytes | str) -> Any:
    """A JSON text, else `StructureError`. NaN, infinity, repeated keys and lone surrogates are errors."""
    text = _decoded(content)
    marks = sum(text.count(mark) for mark in ",:[{")  # one of them stands before every value but the first
    if marks > MAX_VALUES:
        raise StructureError(f"it holds more than {MAX_VALUES:,} values")
    try:
        tree = json.loads(
            text, parse_int=_integer, parse_float=_float, parse_constant=_float, object_pairs_hook=_mapping
        )
    except StructureError:
        raise
    except json.JSONDecodeError as error:
        raise StructureError(f"line {error.lineno}, column {error.colno}: {error.msg}") from None
    except RecursionError:
        raise StructureError(f"it is nested deeper than {MAX_DEPTH} levels") from None
    _check_tree(tree)
    return tree


def parse_yaml(content: bytes | str) -> Any:
    """A YAML text, else `StructureError`. Keys are kept as they are written."""
    text = _decoded(content)
    if len(text) > MAX_YAML_BYTES:
        raise StructureError(f"it is longer than {regular.size_text(MAX_YAML_BYTES)}")
    # PyYAML's time grows with the square of this depth, before its own recursion ends it
    openings = accumulate({"[": 1, "{": 1, "]": -1, "}": -1}.get(mark, 0) for mark in text)
    if max(openings, default=0) > MAX_DEPTH:
        raise StructureError(f"it is nested deeper than {MAX_DEPTH} levels")
    try:
        tree = yaml.load(text, Loader=_Loader)
    except StructureError:
        raise
    except yaml.MarkedYAMLError as error:
        mark = error.problem_mark
        where = f"line {mark.line + 1}: " if mark is not None else ""
        raise StructureError(f"{where}{error.problem or error.context}") from None
    except RecursionError:
        raise StructureError(f"it is nested deeper than {MAX_DEPTH} levels") from None
    except Exception as error:  # PyYAML lets errors of int(), float() and chr() through
        raise StructureError((str(error).splitlines() or [type(error).__name__])[0]) from None
    _check_tree(tree, MAX_YAML_BYTES)  # without aliases there are fewer values than bytes
    return tree


def _decoded(content: bytes | str) -> str:
    if isinstance(content, str):
        return content
    try:
        return content.decode("utf-8-sig")
    except UnicodeDecodeError as error:
        raise StructureError(f"byte {error.start} is not UTF-8") from None


def _integer(digits: str) -> int:
    if len(digits.lstrip("-")) > MAX_DIGITS:
        raise StructureError(f"an integer has more than {MAX_DIGITS} digits")
    return int(digits)


def _float(text: str) -> float:
    value = float(text)
    if not math.isfinite(value):
        raise StructureError(f"{text[:20]} is not a finite number")
    return value


def _mapping(pairs: list[tuple[str, Any]]) -> dict[str, Any]:
    tree = dict(pairs)
    if len(tree) < len(pairs):
        (twice, _), *_rest = Counter(key for key, _ in pairs).most_common(1)
        raise StructureError(f"the key '{twice}' stands there twice")
    return tree


def _check_tree(tree: Any, limit: int = MAX_VALUES) -> None:
    """Reject depth, lone surrogates, and aliases that stand for too many values or for themselves."""
    count, todo = 0, [(tree, 0)]
    while todo:
        value, depth = todo.pop()
        count += 1
        if depth > MAX_DEPTH:  # a value that contains itself is endlessly deep
            raise StructureError(f"it is nested deeper than {MAX_DEPTH} levels")
        if count + len(todo) > limit:
            raise StructureError(f"it holds more than {limit:,} values")
        if isinstance(value, str):
            _check_text(value)
        elif isinstance(value, dict):
            for key in value:
                _check_text(key)
            todo.extend((inner, depth + 1) for inner in value.values())
        elif isinstance(value, list):
            todo.extend((inner, depth + 1) for inner in value)


def _check_text(text: str) -> None:
    if not is_unicode(text):
        raise StructureError("a text holds half of a surrogate pair")


def is_unicode(text: str) -> bool:
    """Whether a string can be written as UTF-8; lone surrogates cannot."""
    try:
        return text.isascii() or bool(text.encode())
    except UnicodeEncodeError:
        return False


class _Loader(yaml.SafeLoader):
    """Plain values, with text as keys; Python tuples, which some configurations contain, are lists."""

    yaml_constructors = {}  # noqa: RUF012 (PyYAML's own way)
    yaml_implicit_resolvers = {}  # noqa: RUF012

    def number(self, node: yaml.ScalarNode) -> int | float:
        text = self.construct_scalar(node)
        try:
            if node.tag.endswith(":float"):
                return _float(f"{self.construct_yaml_float(node)}")
            if len(text) > 4 * MAX_DIGITS:  # binary digits, and underscores between them
                raise StructureError(f"an integer has more than {MAX_DIGITS} digits")
            return _integer(str(self.construct_yaml_int(node)))
        except (ValueError, OverflowError) as error:
            reason = str(error) if isinstance(error, StructureError) else f"{text[:20]} is not a number"
            raise StructureError(f"line {node.start_mark.line + 1}: {reason}") from None

    def unknown(self, node: yaml.Node) -> Any:
        raise yaml.constructor.ConstructorError(None, None, f"the tag {node.tag} is not read", node.start_mark)

    def mapping(self, node: yaml.Node) -> Any:
        if not isinstance(node, yaml.MappingNode):
            raise yaml.constructor.ConstructorError(None, None, "a mapping was expected", node.start_mark)
        tree: dict[str, Any] = {}
        yield tree
        for key, value in node.value:
            if not isinstance(key, yaml.ScalarNode) or key.tag.endswith(":merge"):
                reason = "merge keys are not read" if isinstance(key, yaml.ScalarNode) else "a key must be text"
                raise yaml.constructor.ConstructorError(None, None, reason, key.start_mark)
            if key.value in tree:
                said = f"the key '{key.value}' stands there twice"
                raise yaml.constructor.ConstructorError(None, None, said, key.start_mark)
            tree[key.value] = self.construct_object(value, deep=True)


def _build_loader() -> None:
    tag = "tag:yaml.org,2002:"
    for first, known in yaml.SafeLoader.yaml_implicit_resolvers.items():
        kept = [(name, pattern) for name, pattern in known if name not in (f"{tag}timestamp", f"{tag}float")]
        _Loader.yaml_implicit_resolvers[first] = kept
    exponent = r"(?:[eE][-+]?[0-9]+)"
    numbers = rf"[-+]?(?:[0-9][0-9_]*\.[0-9_]*{exponent}?|[0-9]+{exponent}|\.[0-9]+{exponent}?|\.(?:inf|Inf|INF))"
    pattern = re.compile(rf"^(?:{numbers}|\.(?:nan|NaN|NAN))$")  # YAML 1.2: `1e-5` is a number
    _Loader.add_implicit_resolver(f"{tag}float", pattern, list("-+0123456789."))
    plain = {name: yaml.SafeLoader.yaml_constructors[f"{tag}{name}"] for name in ("null", "bool", "str", "seq")}
    plain |= {"int": _Loader.number, "float": _Loader.number, "map": _Loader.mapping}
    for name, constructor in (plain | {"python/tuple": plain["seq"]}).items():
        _Loader.add_constructor(f"{tag}{name}", constructor)
    _Loader.add_constructor(None, _Loader.unknown)


_build_loader()
