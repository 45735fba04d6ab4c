"""Every package that di4c imports is one that its installation asks for."""

from __future__ import annotations

import ast
import re
import sys
from pathlib import Path

ROOT = Path(__file__).parents[2]
OTHER_NAMES = {"PIL": "pillow", "yaml": "pyyaml"}
OPTIONAL = {"deepspeed", "wandb", "trackio"}
"""Imported only where the user has chosen and installed them."""


def imported() -> set[str]:
    names: set[str] = set()
    for path in (ROOT / "di4c_cli").rglob("*.py"):
        for node in ast.walk(ast.parse(path.read_text(encoding="utf-8"))):
            if isinstance(node, ast.Import):
                names |= {alias.name.partition(".")[0] for alias in node.names}
            elif isinstance(node, ast.ImportFrom) and node.module and not node.level:
                names.add(node.module.partition(".")[0])
    return {name for name in names if name not in sys.stdlib_module_names} - {"di4c_cli"}


def test_imports_are_declared_dependencies() -> None:
    asked = (ROOT / "pyproject.toml").read_text(encoding="utf-8").partition("\ndev = [")[0]
    declared = {name.replace("-", "_").lower() for name in re.findall(r'"([\w-]+)>=', asked)}
    found = {OTHER_NAMES.get(name, name).lower() for name in imported()} - OPTIONAL
    assert found <= declared, sorted(found - declared)
