"""Shows that the parity cases notice a missing device: removes one device argument of the package after another.

`python -m tests.device --mutate` removes all of them, each in a process of its own. A first run of the cases records
which of them reach which argument, and only these run without it.
"""

from __future__ import annotations

import ast
import importlib.machinery
import os
import sys
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import accelerate  # noqa: F401 (imported once, for all processes)
import torch  # noqa: F401

ROOT = Path(__file__).parents[2] / "di4c_cli"
GUARDED = ("methods", "sampler", "process", "latent", "network", "noise.py", "denoiser.py", "draw.py", "numerics.py")
ON_MPS = "for MPS (tests/test_pretend_mps.py)"
NEUTRAL = {
    "draw.py: categorical(log_p.cpu()": ON_MPS,
    "noise.py: out.view": ON_MPS,
    "sampler/tiles.py: torch.zeros": "hidden states where no position is wanted, which no sampler asks for",
    "process/markov.py: matrix.to(finest": ON_MPS,
    "methods/kernels/head.py: torch.zeros(len(row)": "positions, which the U-Net's head does not read",
    "methods/kernels/targets.py: torch.zeros(0": "an empty result for no rows",
}
"""Arguments that no case can notice, and why."""

Site = tuple[str, int, int]
"""File, line and column of a call with a device."""


def files() -> list[Path]:
    """The guarded modules."""
    return sorted(path for path in ROOT.rglob("*.py") if path.relative_to(ROOT).parts[0] in GUARDED)


def device_of(call: ast.AST) -> ast.expr | None:
    """The device in a call such as `torch.zeros(3, device=x.device)` or `x.to(device)`."""
    if not isinstance(call, ast.Call) or not isinstance(call.func, ast.Attribute):
        return None
    if isinstance(call.func.value, ast.Name) and call.func.value.id == "torch":
        return next((keyword.value for keyword in call.keywords if keyword.arg == "device"), None)
    one = call.func.attr == "to" and len(call.args) == 1 and not call.keywords
    return call.args[0] if one and ast.unparse(call.args[0]).endswith("device") else None


def sites() -> Iterator[tuple[Site, str]]:
    """Every device argument with the source of its call; modules that move themselves are left out."""
    for path in files():
        for node in ast.walk(ast.parse(path.read_text(encoding="utf-8"))):
            if device_of(node) is not None and "self.vqgan" not in ast.unparse(node):
                assert isinstance(node, ast.Call)
                name = str(path.relative_to(ROOT))
                yield (name, node.lineno, node.col_offset), f"{name}: {ast.unparse(node)}"


class Change(ast.NodeTransformer):
    """Applies `change` to the device calls of one file."""

    def __init__(self, name: str, change: Callable[[Site, ast.Call], ast.expr]) -> None:
        self.name, self.change = name, change

    def visit_Call(self, node: ast.Call) -> ast.expr:
        self.generic_visit(node)
        return node if device_of(node) is None else self.change((self.name, node.lineno, node.col_offset), node)


def without(site: Site) -> Callable[[Site, ast.Call], ast.expr]:
    """Remove the device of one call."""

    def change(place: Site, call: ast.Call) -> ast.expr:
        if place != site:
            return call
        if call.args and device_of(call) is call.args[0]:
            assert isinstance(call.func, ast.Attribute)
            return call.func.value
        call.keywords = [keyword for keyword in call.keywords if keyword.arg != "device"]
        return call

    return change


def recorded(place: Site, call: ast.Call) -> ast.expr:
    """Note in `sys.reached` that a call ran: `(note, call)[1]`."""
    note = ast.parse(f"__import__('sys').reached.add({place!r})", mode="eval").body
    return ast.Subscript(ast.Tuple([note, call], ast.Load()), ast.Constant(1), ast.Load())


def install(change: Callable[[Site, ast.Call], ast.expr]) -> None:
    """Change the guarded modules as they are imported; none of them is imported yet."""
    assert "di4c_cli" not in sys.modules
    loader = importlib.machinery.SourceFileLoader
    plain, guarded = loader.get_code, {str(path) for path in files()}

    def get_code(self: Any, fullname: str) -> Any:
        if self.path not in guarded:
            return plain(self, fullname)
        tree = ast.parse(Path(self.path).read_text(encoding="utf-8"))
        tree = Change(str(Path(self.path).relative_to(ROOT)), change).visit(tree)
        return compile(ast.fix_missing_locations(tree), self.path, "exec")

    loader.get_code = get_code  # type: ignore[method-assign]


def cases() -> dict[str, Callable[[], None]]:
    """The parity cases by name; imports the package."""
    from tests.device import test_parity as parity

    def case(test: Callable[..., None], *args: Any) -> Callable[[], None]:
        return lambda: test(*args)

    found = {}
    for kind, test, given in (
        ("train", parity.test_training_step_equals_the_cpu, parity.TRAINED),
        ("sample", parity.test_samples_equal_the_cpu, parity.SAMPLED),
    ):
        for args, label in zip(given, parity.case_names(given), strict=True):
            found[f"{kind} {label}"] = case(test, *args)
    for name, dtype in parity.SCORED:
        found[f"log_probs {name} {dtype}"] = case(parity.test_log_probs_equal_the_cpu, name, dtype)
    found["no unknown positions"] = parity.test_batch_without_unknown_positions_has_gradients_of_zero
    for name in parity.PROCESSES:
        found[f"transition {name}"] = case(parity.test_transition_matrices_equal_the_cpu, name)
    for index in parity.NUMBERED:
        found[f"noise {index}"] = case(parity.test_noise_has_the_bits_of_the_cpu_and_is_made_on_the_device, index)
    return found


def in_child(action: Callable[[], Any]) -> Any:
    """The result of an action, as a literal, in a forked process: this one stays without the package."""
    reading, writing = os.pipe()
    child = os.fork()
    if child == 0:
        try:
            with os.fdopen(writing, "w") as out:
                out.write(repr(action()))
        finally:
            os._exit(0)
    os.close(writing)
    with os.fdopen(reading) as result:
        text = result.read()
    os.waitpid(child, 0)
    return ast.literal_eval(text)


def fails(site: Site, names: list[str]) -> bool:
    """Whether one of the cases fails without the device at a site."""

    def run() -> bool:
        install(without(site))
        known = cases()
        for case in [known[name] for name in names]:
            try:
                case()
            except Exception:
                return True
        return False

    return bool(in_child(run))


def reached() -> dict[Site, list[str]]:
    """The cases that reach each site."""
    install(recorded)
    out: dict[Site, list[str]] = {}
    for name, case in cases().items():
        sys.reached = set()  # type: ignore[attr-defined]
        case()
        for site in sys.reached:  # type: ignore[attr-defined]
            out.setdefault(site, []).append(name)
    return out


def main(chosen: list[tuple[str, str]]) -> int:
    """Remove every device argument, or those of `chosen` (start of a site's text, case); the number unnoticed."""
    cover: dict[Site, list[str]] = {} if chosen else in_child(reached)
    unnoticed = 0
    for site, text in sites():
        names = cover.get(site, [])
        if chosen:
            names = [case for start, case in chosen if text.startswith(start)]
            if not names:
                continue
        neutral = next((why for start, why in NEUTRAL.items() if text.startswith(start)), None)
        if neutral is not None:
            state = f"neutral: {neutral}"
        elif not names:
            state, unnoticed = "NOT REACHED", unnoticed + 1
        elif fails(site, names):
            state = "noticed"
        else:
            state, unnoticed = "SURVIVES", unnoticed + 1
        print(f"{state:12} {site[0]}:{site[1]} {text.partition(': ')[2]}", flush=True)
    return unnoticed
