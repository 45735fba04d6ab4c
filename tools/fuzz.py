"""Mutated models through the real command: each ends in one sentence and exit code 2, or loads and works.

    python -m tools.fuzz --count 1000 --seed 0

The test suite runs the first hundred. Every case is a function of the seed and its number.
"""

from __future__ import annotations

import argparse
import json
import os
import random
import resource
import shutil
import sys
import tempfile
import time
import zipfile
from collections import Counter
from collections.abc import Callable
from pathlib import Path
from typing import Any

import torch
from safetensors.torch import load_file, save_file
from typer.testing import CliRunner

from di4c_cli import load
from di4c_cli.cli.app import app
from di4c_cli.teacher.convert import convert

GOLDEN = Path(__file__).parents[1] / "tests" / "golden"
SECONDS, MEGABYTES = 10.0, 2048
CASES: dict[str, list[str]] = {
    "sdtt": [],
    "mdlm": [],
    "sdtt_di4c_student": [],
    "maskgit": ["--heads", "4", "--codes", "40"],
    "maskgit_di4c_student": ["--heads", "4", "--codes", "40"],
    "tauldr/teacher": [],
    "tauldr/di4c_student": [],
    "own-text": [],
    "own-pixels": [],
    "own-codes": [],
}
NUMBERS: list[Any] = [
    10**9,
    10**18,
    -1,
    0,
    1,
    7,
    1e308,
    float("nan"),
    float("inf"),
    0.5,
    "12",
    None,
    True,
    [],
    [10**9] * 3,
]
NAMES = ["../../../../etc/passwd", "/etc/passwd", "..", "a/b", "\0", "x" * 400, "CON", ""]

Mutation = Callable[[Path, random.Random], str]


def prepare(root: Path) -> None:
    """Intact models: the golden checkpoints without inputs and outputs, and three folders of our own."""
    for name in CASES:
        if not name.startswith("own-"):
            ignored = shutil.ignore_patterns("io.safetensors", "README.md", "config_resolved.json", "hyper.json")
            shutil.copytree(GOLDEN / name, root / name, ignore=ignored)
    convert(str(GOLDEN / "sdtt_di4c_student"), root / "own-text")
    convert(str(GOLDEN / "tauldr" / "teacher"), root / "own-pixels")
    convert(str(GOLDEN / "maskgit"), root / "own-codes", heads=4, vqgan=str(GOLDEN / "vqgan"))
    for path in root.rglob("*"):
        path.chmod(0o755 if path.is_dir() else 0o644)


def files_of(folder: Path) -> list[Path]:
    return sorted(path for path in folder.rglob("*") if path.is_file())


def weights_of(folder: Path) -> Path:
    return max(files_of(folder), key=lambda path: path.stat().st_size)


def truncate(folder: Path, rng: random.Random) -> str:
    path = rng.choice(files_of(folder))
    size = rng.choice([0, 1, 7, 8, 9, 100, rng.randrange(path.stat().st_size)])
    path.write_bytes(path.read_bytes()[:size])
    return f"{path.name} cut to {size} bytes"


def flip(folder: Path, rng: random.Random) -> str:
    path = rng.choice([weights_of(folder), rng.choice(files_of(folder))])
    content = bytearray(path.read_bytes())
    span = min(len(content), rng.choice([64, 4096, len(content)]))
    count = rng.choice([1, 2, 16, 256])
    for _ in range(count):
        content[rng.randrange(span)] ^= 1 << rng.randrange(8)
    path.write_bytes(content)
    return f"{count} bits of the first {span} bytes of {path.name} flipped"


def scramble(folder: Path, rng: random.Random) -> str:
    path = weights_of(folder)
    content = bytearray(path.read_bytes())
    start = rng.randrange(len(content))
    stop = min(len(content), start + rng.choice([8, 512, 65536]))
    content[start:stop] = rng.choice([bytes(stop - start), rng.randbytes(stop - start)])
    path.write_bytes(content)
    return f"{path.name}[{start}:{stop}] overwritten"


def change_tensor(folder: Path, rng: random.Random) -> str:
    """One tensor with another shape, type, name or content."""
    path = weights_of(folder)
    tree = load_file(path) if path.suffix == ".safetensors" else torch.load(path, weights_only=True)
    table: Any = next((tree[key] for key in ("state_dict", "model_state_dict", "model") if key in tree), tree)
    name = rng.choice([key for key, value in table.items() if isinstance(value, torch.Tensor)])
    tensor = table[name]
    way = rng.choice(sorted(TENSORS))
    changed = TENSORS[way](tensor)
    if way == "renamed":
        table[rng.choice(NAMES)] = table.pop(name)
    elif changed is None:
        del table[name]
    else:
        table[name] = changed
    if path.suffix == ".safetensors":
        save_file({key: value.contiguous() for key, value in tree.items()}, path)
    else:
        torch.save(tree, path, _use_new_zipfile_serialization=rng.random() < 0.7)
    return f"'{name}' {way}"


TENSORS: dict[str, Callable[[torch.Tensor], torch.Tensor | None]] = {
    "transposed": lambda t: t.flip(0).movedim(0, -1).contiguous(),
    "flattened": lambda t: t.flatten(),
    "NaN": lambda t: torch.full_like(t, float("nan")),
    "one NaN": lambda t: t.clone().view(-1).index_fill(0, torch.tensor([0]), float("nan")).view(t.shape),
    "infinite": lambda t: t / 0.0,
    "huge": lambda t: t * 1e30,
    "tiny": lambda t: t * 1e-30,
    "zero": lambda t: torch.zeros_like(t),
    "bytes": lambda t: t.to(torch.int8),
    "long": lambda t: t.long(),
    "bool": lambda t: t > 0,
    "half": lambda t: t.half(),
    "bfloat16": lambda t: t.bfloat16(),
    "double": lambda t: t.double(),
    "huge double": lambda t: t.double() * 1e300,
    "empty": lambda t: t.flatten()[:0],
    "scalar": lambda t: t.flatten()[0].clone(),
    "gone": lambda t: None,
    "renamed": lambda t: t,
}


def change_config(folder: Path, rng: random.Random) -> str:
    """One value of a configuration made absurd; where there is none, another mutation."""
    paths = [path for path in files_of(folder) if path.suffix in (".json", ".yaml")]
    if not paths:
        return change_tensor(folder, rng)
    path = rng.choice(paths)
    import yaml

    tree = json.loads(path.read_text()) if path.suffix == ".json" else yaml.safe_load(path.read_text())
    node, route = tree, []
    while isinstance(node, dict) and node:
        parent, key = node, rng.choice(sorted(node))
        route.append(str(key))
        node = node[key]
    value = rng.choice(NAMES if isinstance(node, str) and rng.random() < 0.7 else NUMBERS)
    if rng.random() < 0.1:
        del parent[key]
    elif rng.random() < 0.1:
        parent["unheard_of"] = value
    else:
        parent[key] = value
    path.write_text(json.dumps(tree) if path.suffix == ".json" else yaml.safe_dump(tree))
    return f"{path.name}: {'.'.join(route)} = {str(value)[:30]!r}"


def replace(folder: Path, rng: random.Random) -> str:
    """A file that is none: a link to nowhere, itself, a device or a folder; a pipe; noise; deep nesting."""
    path = rng.choice(files_of(folder))
    way = rng.choice(["nowhere", "itself", "device", "folder", "pipe", "noise", "nested", "same", "absent", "sparse"])
    content = path.read_bytes()
    path.unlink()
    if way in ("nowhere", "itself", "device", "folder"):
        targets = {"nowhere": "missing", "itself": path.name, "device": "/dev/zero", "folder": "/"}
        path.symlink_to(targets[way])
    elif way == "pipe":
        os.mkfifo(path)
    elif way == "noise":
        path.write_bytes(rng.randbytes(5000))
    elif way == "nested":
        path.write_text('{"a":' * 50_000 + "1" + "}" * 50_000)
    elif way == "same":  # harmless: a link to the very same content
        (folder.parent / f"{folder.name}-elsewhere").write_bytes(content)
        path.symlink_to(folder.parent / f"{folder.name}-elsewhere")
    elif way == "sparse":
        with path.open("wb") as handle:
            handle.write(content)
            handle.truncate(10 * 2**30)
    return f"{path.name} replaced: {way}"


def bomb(folder: Path, rng: random.Random) -> str:
    """An archive of a few kilobytes that unpacks to gigabytes, or whose records overlap."""
    path = weights_of(folder)
    if zipfile.is_zipfile(path):
        with zipfile.ZipFile(path) as archive:
            contents = {record.filename: archive.read(record) for record in archive.infolist()}
        with zipfile.ZipFile(path, "w", zipfile.ZIP_DEFLATED) as archive:
            for name, content in contents.items():
                archive.writestr(name, content)
            archive.writestr("archive/data/bomb", bytes(rng.choice([10**6, 3 * 10**8])))
        return f"{path.name} became a zip bomb"
    header = json.dumps({"a": {"dtype": "F32", "shape": [10**6, 10**6], "data_offsets": [0, 4 * 10**12]}}).encode()
    path.write_bytes(len(header).to_bytes(8, "little") + header + bytes(100))
    return f"{path.name} claims four terabytes"


MUTATIONS: list[Mutation] = [truncate, flip, scramble, change_tensor, change_config, replace, bomb]
WEIGHTS = [2, 4, 2, 4, 5, 2, 1]


def check(source: Path, number: int, seed: int, work: Path) -> tuple[str, str]:
    """Run one case: its outcome (`refused`, `loaded`) and what was done; raises where a promise is broken."""
    rng = random.Random(f"{seed}:{number}")
    case = rng.choice(sorted(CASES))
    folder, out = work / "model", work / "out"
    for path in (folder, out):
        shutil.rmtree(path, ignore_errors=True)
    shutil.copytree(source / case, folder)
    story = f"#{number} {case}: {rng.choices(MUTATIONS, WEIGHTS)[0](folder, rng)}"
    target = str(folder)
    started = time.process_time()
    result = CliRunner().invoke(app, ["convert", target, str(out), *CASES[case]])
    broken = result.exception is not None and not isinstance(result.exception, SystemExit)
    assert not broken, f"{story}: {type(result.exception).__name__}: {result.exception}"
    if result.exit_code == 0:
        assert_finite(out, story)
    else:
        assert result.exit_code == 2, f"{story}: exit code {result.exit_code}: {result.stderr}"
        assert result.stderr.startswith("di4c: ") and len(result.stderr.strip().splitlines()) == 1, (
            f"{story}: not one sentence: {result.stderr}"
        )
        assert not out.exists(), f"{story}: something was written"
    spent = time.process_time() - started
    assert spent < SECONDS, f"{story}: took {spent:.1f} s"
    return ("loaded" if result.exit_code == 0 else "refused"), story


def assert_finite(out: Path, story: str) -> None:
    """A model that was accepted gives probabilities."""
    try:
        model = load(str(out))
        shape, states = (2, model.denoiser.length), model.denoiser.process.states
        x = torch.randint(0, states, shape, generator=torch.Generator().manual_seed(0))
        log_probs = model.log_probs(x, torch.tensor([0.99, 0.01]))
    except Exception as error:
        raise AssertionError(f"{story}: accepted, but {type(error).__name__}: {error}") from error
    assert not bool(torch.isnan(log_probs).any()), f"{story}: NaN"
    total = log_probs.double().exp().sum(-1)
    assert torch.allclose(total, torch.ones_like(total), atol=1e-3), f"{story}: probabilities do not sum to one"


def run(count: int, seed: int, keep_going: bool = False) -> Counter[str]:
    """`count` cases: how many were refused, loaded and (with `keep_going`) broke a promise; peak memory."""
    outcomes: Counter[str] = Counter()
    with tempfile.TemporaryDirectory() as folder:
        root = Path(folder)
        prepare(root / "intact")
        for number in range(count):
            try:
                outcome, _ = check(root / "intact", number, seed, root)
            except AssertionError as error:
                if not keep_going:
                    raise
                outcome = "broken"
                print(error, file=sys.stderr)
            outcomes[outcome] += 1
    outcomes["peak_mb"] = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss // 1024
    return outcomes


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--count", type=int, default=1000)
    parser.add_argument("--seed", type=int, default=0)
    parser.add_argument("--keep-going", action="store_true", help="report every broken promise")
    given = parser.parse_args()
    torch.set_num_threads(1)
    started = time.monotonic()
    outcomes = run(given.count, given.seed, given.keep_going)
    print(json.dumps({**outcomes, "seconds": round(time.monotonic() - started)}))
    return 1 if outcomes["broken"] or outcomes["peak_mb"] > MEGABYTES else 0


if __name__ == "__main__":
    sys.exit(main())
