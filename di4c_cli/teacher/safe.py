"""Reads untrusted text: the kind of a file by its first bytes, JSON and YAML as plain values. Imports no torch."""

from __future__ import annotations

import json
import stat
from pathlib import Path
from typing import Any

import yaml

MAX_TEXT_BYTES = 2 * 2**20
MAX_YAML_BYTES = 2**18


def is_regular(path: Path) -> bool:
    """Whether a path is a file or a link to one; reading a pipe or a device might never end."""
    try:
        return stat.S_ISREG(path.stat().st_mode)
    except (OSError, ValueError):
        return False


def kind_of(path: Path) -> str | None:
    """`safetensors`, `pickle` or `text` by the first bytes, None for anything else."""
    try:
        with path.open("rb") as handle:
            head = handle.read(512)
    except OSError:
        return None
    # safetensors first: the length of its header may well begin like a pickle
    if head[8:9] == b"{" and int.from_bytes(head[:8], "little") < path.stat().st_size:
        return "safetensors"
    if head[:4] == b"PK\x03\x04" or (len(head) > 1 and head[0] == 0x80 and head[1] <= 5):
        return "pickle"
    if path.stat().st_size <= MAX_TEXT_BYTES and b"\0" not in head:
        return "text"
    return None


def read_tree(path: Path) -> dict[str, Any] | None:
    """A JSON or YAML mapping, else None (JSON first: YAML 1.1 takes 1e-05 for a string)."""
    if not is_regular(path) or path.stat().st_size > MAX_TEXT_BYTES:
        return None
    try:
        text = path.read_text(encoding="utf-8")
    except (OSError, UnicodeDecodeError):
        return None
    try:
        tree = json.loads(text)
    except (ValueError, RecursionError):
        tree = _read_yaml(text)
    return tree if isinstance(tree, dict) else None


class _TuplesAsLists(yaml.SafeLoader):
    """Plain values only; Python tuples, which some configurations contain, are read as lists."""


_TuplesAsLists.add_constructor(
    "tag:yaml.org,2002:python/tuple", lambda loader, node: list(map(loader.construct_object, node.value))
)


def _read_yaml(text: str) -> Any:
    if len(text) > MAX_YAML_BYTES or "<<" in text:  # merge keys can grow exponentially; no format has them
        return None
    try:
        return yaml.load(text, Loader=_TuplesAsLists)
    except (yaml.YAMLError, ValueError, TypeError, RecursionError):
        return None
