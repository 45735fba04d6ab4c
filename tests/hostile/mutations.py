"""Ways to damage a file: its bytes, its place, or the tree of values inside it; all are functions of a generator."""

from __future__ import annotations

import json
import os
import random
from collections.abc import Callable
from pathlib import Path
from typing import Any

import yaml

CONTROLS = "\x1b]0;title\x07\x1b[8mhidden\x1b[0m\x9b31m\r\u202etxt.exe\u200b"
MARKUP = "[/nope] [link=http://127.0.0.1/]x[/link] [bold]b[/] **m** ![i](http://127.0.0.1/x) <script>1</script> | `"
TEXTS: list[str] = [
    "",
    " ",
    "x",
    "x" * 400,
    "x" * 70_000,
    "../../../../etc/passwd",
    "/etc/passwd",
    "..",
    "a/b",
    "nul\0byte",
    CONTROLS,
    MARKUP,
    "naïve λ 字 🙂",
    "\ud800",
    "12",
    "1e999",
    "null",
    "user/name",
    "2024-02-31",
    "*" * 50,
    "%s%n{0}{x}",
]
NUMBERS: list[Any] = [
    *(0, 1, 2, 3, 7, -1, -(2**31), 2**31, 2**32, 2**63 - 1, 2**63, 2**64, 10**9, 10**18, 10**30, 10**4500 - 1),
    *(0.5, -0.0, 1e-320, 1e308, -1e308, float("nan"), float("inf"), float("-inf"), 0.1 + 0.2),
]
OTHERS: list[Any] = [None, True, False, [], {}, [[]], [1, "a", None], {"a": {"b": []}}, [10**9] * 3, [0] * 5000]
SIZES = [0, 1, 2, 7, 8, 9, 16, 100]


def value(rng: random.Random) -> Any:
    """Any JSON value."""
    kind = rng.random()
    if kind < 0.35:
        return rng.choice(TEXTS)
    if kind < 0.75:
        return rng.choice(NUMBERS)
    if kind < 0.95:
        return rng.choice(OTHERS)
    return nested(rng.choice([20, 150, 300, 2000]), rng.random() < 0.5)


def changed(old: Any, rng: random.Random) -> Any:
    """A value in another one's place: any, or half of the time one that is near it or means something else."""
    if rng.random() < 0.5 or old is None or isinstance(old, (dict, list)):
        return value(rng)
    if isinstance(old, bool):
        return rng.choice([not old, str(old), int(old)])
    if isinstance(old, str):
        paths = [f"../{old}", f"./{old}", f"/{old}", f"{old}/{old}", f".{old}"]
        return rng.choice([*paths, f"{old}x", old[:-1], old.upper(), f"(?:{old})*", f".*{old}$", [old], old * 1000])
    sizes = [
        old + 1,
        old - 1,
        old * 2,
        old * 0.5 if abs(old) < 2**53 else 0.5,
        old // 2,
        -old,
        old * 1000,
        old * 10**6,
        old * 10**12,
    ]
    number = float(old) if abs(old) < 2**1000 else 1e300
    return rng.choice([*sizes, number, str(old), [old], bool(old)])


def nested(depth: int, lists: bool) -> Any:
    """A value inside so many others."""
    tree: Any = 1
    for _ in range(depth):
        tree = [tree] if lists else {"a": tree}
    return tree


def places(tree: Any) -> list[tuple[Any, Any]]:
    """Every container of a tree with each of its keys."""
    found, waiting = [], [tree]
    while waiting:
        node = waiting.pop()
        keys: list[Any] = list(node) if isinstance(node, dict) else list(range(len(node)))
        for key in keys if len(keys) < 200 else keys[:100]:
            found.append((node, key))
            if isinstance(node[key], (dict, list)):
                waiting.append(node[key])
    return found


def change_tree(tree: Any, rng: random.Random) -> Any:
    """One to three changes: another value, a key gone, added, renamed or moved, a list made longer."""
    for _ in range(rng.choice([1, 1, 1, 2, 3])):
        if not isinstance(tree, (dict, list)) or not (found := places(tree)) or rng.random() < 0.02:
            return value(rng)
        node, key = rng.choice(found)
        way = rng.random()
        if way < 0.6:
            node[key] = changed(node[key], rng)
        elif way < 0.7:
            del node[key]
        elif way < 0.8 and isinstance(node, dict):
            node[rng.choice(TEXTS)] = node.pop(key) if rng.random() < 0.5 else value(rng)
        elif way < 0.9:
            other, name = rng.choice(found)
            with_copy = json.loads(json.dumps(other[name], default=str)) if _present(other, name) else None
            node[key] = with_copy
        elif isinstance(node, list):
            node.extend([node[key]] * rng.choice([1, 10, 5000]))
        else:
            node[key] = [node[key]]
    return tree


def _present(node: Any, key: Any) -> bool:
    return key in node if isinstance(node, dict) else key < len(node)


def json_text(tree: Any, rng: random.Random) -> bytes:
    """The tree as JSON, sometimes with repeated keys, other encodings or digits beyond any number."""
    import sys

    before = sys.get_int_max_str_digits()
    sys.set_int_max_str_digits(0)
    try:
        text = json.dumps(tree, ensure_ascii=rng.random() < 0.5)
    except RecursionError:  # deeper than the encoder goes; so is this
        text = "[" * 100_000
    finally:
        sys.set_int_max_str_digits(before)
    way = rng.random()
    if way < 0.05 and text.startswith("{"):
        text = text[:-1] + (", " if len(text) > 2 else "") + text[1:]  # every key twice
    elif way < 0.08:
        return text.encode("utf-16", "surrogatepass")
    elif way < 0.1:
        text = "\ufeff" + text
    elif way < 0.12:
        text = text + text
    return text.encode("utf-8", "surrogatepass")


def yaml_text(tree: Any, rng: random.Random) -> bytes:
    """The tree as YAML, sometimes with a construct that YAML alone has."""
    text = yaml.safe_dump(json.loads(json.dumps(tree, default=str)), allow_unicode=rng.random() < 0.5, sort_keys=False)
    extra = [
        "when: 2024-02-31\n",
        "bits: 0b_\n",
        "sixty: 1:61:61\n",
        f"digits: {'9' * 6000}\n",
        "a: &a [x,x,x,x,x,x,x,x]\nb: &b [*a,*a,*a,*a,*a,*a,*a]\nc: &c [*b,*b,*b,*b,*b,*b]\nd: [*c,*c,*c,*c,*c]\n",
        "self: &s [*s]\n",
        "code: !!python/object/apply:os.system ['true']\n",
        "merge: {<<: {a: 1}, <<: [1]}\n",
        "? [a, b]\n: c\n",
        "? {a: b}\n: c\n",
        "deep: " + "[" * 3000 + "]" * 3000 + "\n",
        "open: {\n",
        "set: !!set {a, b}\nbinary: !!binary 'x'\nomap: !!omap [a: 1]\n",
        "tab:\t\n\t- x\n",
        "---\nsecond: document\n",
        "~: null key\n1: number key\ntrue: boolean key\n",
        "nan: .nan\ninf: -.inf\noctal: 0o17\nhex: 0x_\n",
    ]
    if rng.random() < 0.3:
        text = rng.choice([text + (piece := rng.choice(extra)), piece + text])
    return text.encode("utf-8", "surrogatepass")


def truncate(content: bytes, rng: random.Random) -> bytes:
    return content[: rng.choice([*SIZES, len(content) // 2, max(0, len(content) - 1), rng.randrange(len(content) + 1)])]


def flip(content: bytes, rng: random.Random) -> bytes:
    """Some bits inverted, mostly near the start, where headers are."""
    out = bytearray(content)
    span = min(len(out), rng.choice([16, 64, 512, 4096, len(out)]))
    for _ in range(rng.choice([1, 2, 16, 256]) if span else 0):
        out[rng.randrange(span)] ^= 1 << rng.randrange(8)
    return bytes(out)


def overwrite(content: bytes, rng: random.Random) -> bytes:
    start = rng.randrange(len(content) + 1)
    stop = min(len(content), start + rng.choice([1, 8, 512, 65536]))
    size = stop - start
    return content[:start] + rng.choice([bytes(size), b"\xff" * size, rng.randbytes(size)]) + content[stop:]


def insert(content: bytes, rng: random.Random) -> bytes:
    """Foreign bytes inside: invalid UTF-8, control characters, a long line, a part of itself again."""
    start = rng.randrange(len(content) + 1)
    pieces = [b"\xff\xfe\x80", CONTROLS.encode(), MARKUP.encode(), b"\0" * 9, b"\n" * 999, b"a" * 10**6, content[:500]]
    return content[:start] + rng.choice(pieces) + content[start:]


def noise(content: bytes, rng: random.Random) -> bytes:
    return rng.choice(
        [rng.randbytes(5000), b"", b"{}", b"[]", b"null", b"\x80\x04N.", b"PK\x03\x04" + rng.randbytes(99)]
    )


BYTES: list[Callable[[bytes, random.Random], bytes]] = [truncate, flip, flip, overwrite, insert, noise]


def damage(path: Path, rng: random.Random) -> str:
    """One change of a file's bytes."""
    way = rng.choice(BYTES)
    path.write_bytes(way(path.read_bytes(), rng))
    return f"{path.name}: {way.__name__}"


def change_values(path: Path, rng: random.Random) -> str:
    """One change of a JSON or YAML file's tree; of its bytes if it is damaged already."""
    try:
        return _change_values(path, rng)
    except (ValueError, RecursionError, yaml.YAMLError):
        return damage(path, rng)


def _change_values(path: Path, rng: random.Random) -> str:
    if path.suffix == ".json":
        path.write_bytes(json_text(change_tree(json.loads(path.read_text()), rng), rng))
    elif path.suffix == ".jsonl":
        lines = path.read_bytes().splitlines() or [b"{}"]
        at = rng.randrange(len(lines))
        lines[at] = json_text(change_tree(json.loads(lines[at]), rng), rng)
        path.write_bytes(b"\n".join(lines) + b"\n")
    else:
        path.write_bytes(yaml_text(change_tree(yaml.safe_load(path.read_text()), rng), rng))
    return f"{path.name}: values"


def replace(path: Path, rng: random.Random) -> str:
    """Something else in the file's place: a link, a pipe, a folder, nothing, a huge sparse file, other permissions."""
    way = rng.choice(
        ["nowhere", "itself", "zero", "full", "root", "pipe", "folder", "gone", "sparse", "same", "closed"]
    )
    content = path.read_bytes()
    if way == "closed":
        path.chmod(0)
        return f"{path.name}: {way}"
    path.unlink()
    links = {"nowhere": "missing", "itself": path.name, "zero": "/dev/zero", "full": "/dev/full", "root": "/"}
    if way in links:
        path.symlink_to(links[way])
    elif way == "pipe":
        os.mkfifo(path)
    elif way == "folder":
        path.mkdir()
    elif way == "sparse":
        with path.open("wb") as handle:
            handle.write(content)
            handle.truncate(10 * 2**30)
    elif way == "same":
        other = path.with_name(f"{path.name}-elsewhere")
        other.write_bytes(content)
        path.symlink_to(other.name)
    return f"{path.name}: {way}"


def mutate(path: Path, rng: random.Random) -> str:
    """Any of the above, as it fits the file."""
    way = rng.random()
    if way < 0.12:
        return replace(path, rng)
    if way < 0.75 and path.suffix in (".json", ".jsonl", ".yaml", ".yml"):
        return change_values(path, rng)
    return damage(path, rng)
