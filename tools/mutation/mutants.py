"""Small wrong changes to Python source, found by walking its syntax tree: what a mutant is.

Kinds: another arithmetic or comparison operator, `and` for `or`, a number one off, a flipped boolean, a condition
negated, a sign dropped, a keyword argument left out, a call replaced by its close relative (`min` for `max`, `sum`
for `mean`, …). Docstrings, annotations, messages of exceptions and assertions are left alone.
"""

from __future__ import annotations

import ast
import copy
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path

ARITHMETIC: dict[type[ast.operator], type[ast.operator]] = {
    ast.Add: ast.Sub,
    ast.Sub: ast.Add,
    ast.Mult: ast.Div,
    ast.Div: ast.Mult,
    ast.FloorDiv: ast.Mult,
    ast.Pow: ast.Mult,
    ast.MatMult: ast.Add,
    ast.BitAnd: ast.BitOr,
    ast.BitOr: ast.BitAnd,
}
COMPARISON: dict[type[ast.cmpop], type[ast.cmpop]] = {
    ast.Lt: ast.LtE,
    ast.LtE: ast.Lt,
    ast.Gt: ast.GtE,
    ast.GtE: ast.Gt,
    ast.Eq: ast.NotEq,
    ast.NotEq: ast.Eq,
    ast.Is: ast.IsNot,
    ast.IsNot: ast.Is,
    ast.In: ast.NotIn,
    ast.NotIn: ast.In,
}
RELATIVES = {
    "min": "max",
    "max": "min",
    "amax": "amin",
    "argmax": "argmin",
    "sum": "mean",
    "mean": "sum",
    "any": "all",
    "all": "any",
    "exp": "log",
    "log": "exp",
    "zeros_like": "ones_like",
    "ones_like": "zeros_like",
    "zeros": "ones",
    "minimum": "maximum",
    "maximum": "minimum",
    "clamp_min": "clamp_max",
    "clamp_max": "clamp_min",
    "softmax": "log_softmax",
    "logsumexp": "amax",
    "add_": "sub_",
    "sub_": "add_",
    "floor": "ceil",
    "ceil": "floor",
    "cumsum": "cumprod",
}


@dataclass(frozen=True)
class Mutant:
    """One change: the file, where in it, what becomes what; `site` and `version` find it again."""

    path: Path
    line: int
    column: int
    change: str
    site: int = 0
    version: int = 0

    def tree(self) -> ast.Module:
        """The file's syntax tree with the change made; what is unchanged stays on its line."""
        tree = ast.parse(self.path.read_text(encoding="utf-8"))
        target = _sites(tree)[self.site]
        _, new = list(changes(target))[self.version]
        changed: ast.Module = ast.fix_missing_locations(_Swap(target, new).visit(tree))
        return changed

    def source(self) -> str:
        """The file with the change made; comments and layout are lost."""
        return ast.unparse(self.tree())

    def function(self) -> tuple[str, int] | None:
        """Name and first line, as in its code object, of the outermost function whose body is changed."""
        tree = ast.parse(self.path.read_text(encoding="utf-8"))
        target = _sites(tree)[self.site]
        for node in ast.walk(tree):  # from the outside in
            if isinstance(node, ast.FunctionDef) and any(
                target is inner for statement in node.body for inner in ast.walk(statement)
            ):
                return node.name, min(one.lineno for one in [node, *node.decorator_list])
        return None


class _Sites(ast.NodeVisitor):
    """Nodes worth changing, in the order of the source, with a way to change each."""

    def __init__(self) -> None:
        self.found: list[ast.AST] = []

    def visit(self, node: ast.AST) -> None:
        if isinstance(node, (ast.Raise, ast.Assert, ast.JoinedStr)):
            return
        if isinstance(node, (ast.FunctionDef, ast.ClassDef)):
            for child in node.body:
                self.visit(child)
            for default in getattr(getattr(node, "args", None), "defaults", []):
                self.visit(default)
            return
        if isinstance(node, ast.AnnAssign):
            if node.value is not None:
                self.visit(node.value)
            return
        if isinstance(node, ast.Expr) and isinstance(node.value, ast.Constant):
            return
        if isinstance(node, ast.If) and _type_checking(node):
            return
        self.found.append(node)
        self.generic_visit(node)


def _type_checking(node: ast.If) -> bool:
    return isinstance(node.test, ast.Name) and node.test.id == "TYPE_CHECKING"


def changes(node: ast.AST) -> Iterator[tuple[str, ast.AST]]:
    """Every wrong version of one node, with its description."""
    if isinstance(node, (ast.BinOp, ast.AugAssign)) and type(node.op) in ARITHMETIC:
        other = ARITHMETIC[type(node.op)]
        yield f"{type(node.op).__name__} -> {other.__name__}", _with(node, op=other())
    elif isinstance(node, ast.Compare) and len(node.ops) == 1:
        other_op = COMPARISON[type(node.ops[0])]
        yield f"{type(node.ops[0]).__name__} -> {other_op.__name__}", _with(node, ops=[other_op()])
    elif isinstance(node, ast.BoolOp):
        swapped: ast.boolop = ast.Or() if isinstance(node.op, ast.And) else ast.And()
        yield f"{type(node.op).__name__} -> {type(swapped).__name__}", _with(node, op=swapped)
    elif isinstance(node, ast.UnaryOp) and isinstance(node.op, (ast.USub, ast.Not, ast.Invert)):
        yield f"{type(node.op).__name__} dropped", copy.deepcopy(node.operand)
    elif isinstance(node, (ast.IfExp, ast.If, ast.While)):
        yield "condition negated", _with(node, test=ast.UnaryOp(ast.Not(), copy.deepcopy(node.test)))
    elif isinstance(node, ast.Constant):
        yield from _constants(node)
    elif isinstance(node, ast.Call):
        yield from _calls(node)


def _constants(node: ast.Constant) -> Iterator[tuple[str, ast.AST]]:
    if isinstance(node.value, bool):
        yield f"{node.value} -> {not node.value}", ast.Constant(not node.value)
    elif isinstance(node.value, int):
        yield f"{node.value} -> {node.value + 1}", ast.Constant(node.value + 1)
    elif isinstance(node.value, float):
        wrong = node.value * 2 if node.value else 1.0
        yield f"{node.value} -> {wrong}", ast.Constant(wrong)


def _calls(node: ast.Call) -> Iterator[tuple[str, ast.AST]]:
    if isinstance(node.func, ast.Attribute) and node.func.attr in RELATIVES:
        other = RELATIVES[node.func.attr]
        yield f"{node.func.attr} -> {other}", _with(node, func=_with(node.func, attr=other))
    elif isinstance(node.func, ast.Name) and node.func.id in RELATIVES:
        other = RELATIVES[node.func.id]
        yield f"{node.func.id} -> {other}", _with(node, func=ast.Name(other, ast.Load()))
    for number, keyword in enumerate(node.keywords):
        if keyword.arg not in (None, "device", "dtype"):
            kept = [copy.deepcopy(one) for i, one in enumerate(node.keywords) if i != number]
            yield f"{keyword.arg}= left out", _with(node, keywords=kept)


def _with(node: ast.AST, **changed: object) -> ast.AST:
    """A copy of a node with other fields."""
    new = copy.deepcopy(node)
    for name, value in changed.items():
        setattr(new, name, value)
    return new


class _Swap(ast.NodeTransformer):
    def __init__(self, old: ast.AST, new: ast.AST) -> None:
        self.old, self.new = old, new

    def visit(self, node: ast.AST) -> ast.AST:
        return ast.copy_location(self.new, node) if node is self.old else self.generic_visit(node)


def _sites(tree: ast.Module) -> list[ast.AST]:
    visitor = _Sites()
    visitor.visit(tree)
    return visitor.found


def mutants(path: Path) -> list[Mutant]:
    """All mutants of a file; each differs from it in one node."""
    return [
        Mutant(path, getattr(node, "lineno", 0), getattr(node, "col_offset", 0), change, site, version)
        for site, node in enumerate(_sites(ast.parse(path.read_text(encoding="utf-8"))))
        for version, (change, _) in enumerate(changes(node))
    ]
