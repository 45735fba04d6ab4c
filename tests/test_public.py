"""Every public function is typed and documented, every file says in its first sentence what lives there."""

from __future__ import annotations

import ast
from collections.abc import Iterator
from pathlib import Path

import di4c_cli

PACKAGE = Path(di4c_cli.__file__).parent
LEFT = {"evaluation/sampling.py:Continuations:digest", "network/dit.py:Rotary:frequencies"}
"""Two-line properties still without a sentence; the list may only shrink."""
Function = ast.FunctionDef | ast.AsyncFunctionDef


def trees() -> Iterator[tuple[str, ast.Module]]:
    for path in sorted(PACKAGE.rglob("*.py")):
        yield path.relative_to(PACKAGE).as_posix(), ast.parse(path.read_text(encoding="utf-8"))


def public(node: ast.Module | ast.ClassDef, where: str) -> Iterator[tuple[str, ast.AST, bool]]:
    """Public classes and functions of a module with their dotted names; whether each is a method."""
    for child in node.body:
        if isinstance(child, (ast.ClassDef, *Function.__args__)) and not child.name.startswith("_"):
            yield f"{where}:{child.name}", child, isinstance(node, ast.ClassDef)
            if isinstance(child, ast.ClassDef):
                yield from public(child, f"{where}:{child.name}")


def everything() -> list[tuple[str, ast.AST, bool]]:
    return [item for where, tree in trees() for item in public(tree, where)]


def test_modules_all_have_a_docstring() -> None:
    silent = [where for where, tree in trees() if tree.body and not ast.get_docstring(tree)]
    assert silent == []


def test_public_names_are_all_documented() -> None:
    """A method may leave it to the interface it implements; one that is a single line speaks for itself."""
    found = everything()
    described = {
        node.name for _, node, method in found if method and isinstance(node, Function) and ast.get_docstring(node)
    }
    missing = []
    for name, node, method in found:
        if ast.get_docstring(node):  # type: ignore[arg-type]
            continue
        if method and isinstance(node, Function):
            plain = len(node.body) == 1
            if plain or node.name in described or node.name == "forward":
                continue
        missing.append(name)
    assert set(missing) <= LEFT


def test_public_functions_are_all_typed() -> None:
    untyped = []
    for name, node, method in everything():
        if not isinstance(node, Function):
            continue
        given = [*node.args.posonlyargs, *node.args.args, *node.args.kwonlyargs, node.args.vararg, node.args.kwarg]
        given = [one for one in given if one is not None]
        static = any(isinstance(mark, ast.Name) and mark.id == "staticmethod" for mark in node.decorator_list)
        given = given[1:] if method and not static else given
        if node.returns is None or any(one.annotation is None for one in given):
            untyped.append(name)
    assert untyped == []
