"""The kind of a file of a model by its first bytes, and its configuration. Imports no torch."""

from __future__ import annotations

from pathlib import Path
from typing import Any

from di4c_cli.errors import UserError
from di4c_cli.foreign.regular import is_regular, read_bytes
from di4c_cli.foreign.structured import StructureError, parse_json, parse_yaml

MAX_TEXT_BYTES = 2 * 2**20
"""Configurations have a few kilobytes."""


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
    """A JSON or YAML mapping, else None."""
    if not is_regular(path):
        return None
    try:
        content = read_bytes(path, MAX_TEXT_BYTES)
    except UserError:
        return None
    for parse in (parse_json, parse_yaml):
        try:
            tree = parse(content)
        except StructureError:
            continue
        return tree if isinstance(tree, dict) else None
    return None
