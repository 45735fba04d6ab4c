"""Many samples on disk: numbered shards of ids with a manifest; the same command run again continues."""

from __future__ import annotations

import json
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
from torch import Tensor

from di4c_cli import __version__, files
from di4c_cli.errors import UserError
from di4c_cli.foreign.arrays import open_npy
from di4c_cli.foreign.structured import read_json
from di4c_cli.generate.request import PreparedSample
from di4c_cli.metric.features import tensors_digest
from di4c_cli.printable import storable
from di4c_cli.process_group import ALONE, ProcessGroup

MANIFEST = "manifest.json"
SYMBOLS_PER_SHARD = 1 << 20
"""A shard has about this many symbols: some megabytes, and seconds or minutes of work."""


def identity(prepared: PreparedSample) -> dict[str, Any]:
    """What the samples depend on. Their number is not part of it, so a folder can grow.

    Device and threads are not part of it either: they may change a last bit, not the distribution.
    """
    facts = {k: v for k, v in prepared.facts().items() if k not in ("n", "device", "threads")}
    given = None if prepared.given is None else [row.tolist() for row in prepared.given]
    given = given[0] if given and len(given) == 1 else given
    weights = tensors_digest(prepared.model.denoiser.network.state_dict())
    found = {"di4c": __version__, "weights": weights, "given_symbols": given, **facts}
    if prepared.teacher is not None:
        found["teacher_weights"] = tensors_digest(prepared.teacher.denoiser.network.state_dict())
    return found


def stream(
    prepared: PreparedSample,
    folder: Path,
    batch_size: int | None = None,
    advance: Callable[[int], None] = lambda count: None,
    group: ProcessGroup = ALONE,
) -> dict[str, Any]:
    """Write samples 0 … n-1 as `ids-00000.npy`, …; existing shards are kept, missing ones are divided over the group.

    Memory holds one shard at a time. Returns the manifest.
    """
    if prepared.given is not None and len(set(map(len, prepared.given))) > 1:
        raise UserError("Samples of different lengths do not fit into shards.", "Use fewer, and a .txt file as --out.")
    size = max(100, SYMBOLS_PER_SHARD // prepared.length // 100 * 100)
    manifest = {"identity": storable(identity(prepared)), "shard": size, "length": prepared.length}
    manifest["codec"] = prepared.model.config.codec
    if folder.is_file():
        raise UserError(f"{folder} is a file.", "Choose a folder with --out.")
    with group.locked(folder):
        group.on_main(lambda: _claim(folder, manifest))
        _fill(prepared, folder, size, batch_size, advance, group)
        group.gather(None)  # the manifest describes the shards of all processes
        manifest["n"] = prepared.n
        if group.main:
            files.write_text(folder / MANIFEST, json.dumps(manifest, indent=2) + "\n")
    return manifest


def _fill(
    prepared: PreparedSample,
    folder: Path,
    size: int,
    batch_size: int | None,
    advance: Callable[[int], None],
    group: ProcessGroup,
) -> None:
    """Draw the missing shards: one for each process at a time; those that are left over are divided."""
    shards = [(first, min(size, prepared.n - first)) for first in range(0, prepared.n, size)]
    missing = group.on_main(lambda: [shard for shard in shards if rows(_path(folder, size, shard[0])) < shard[1]])
    advance(prepared.n - sum(count for _, count in missing))
    whole = len(missing) - len(missing) % group.size
    for first, count in missing[group.rank : whole : group.size]:
        _write(prepared, _path(folder, size, first), prepared.draw(first, count, batch_size=batch_size))
        advance(count * group.size)  # the main process shows its own progress as that of all
    for first, count in missing[whole:]:
        ids = prepared.draw_together(group, first, count, batch_size)
        if group.main:
            _write(prepared, _path(folder, size, first), ids)
        advance(count)


def _path(folder: Path, size: int, first: int) -> Path:
    """The shard that begins with sample number `first`."""
    return folder / f"ids-{first // size:05d}.npy"


def _write(prepared: PreparedSample, path: Path, ids: Tensor) -> None:
    """A shard in the smallest integer type that holds its symbols."""
    narrow = np.min_scalar_type(prepared.model.denoiser.symbols - 1)
    files.write_with(path, lambda file: np.save(file, ids.numpy().astype(narrow), allow_pickle=False))


def rows(path: Path) -> int:
    """Samples in a shard; 0 if it does not exist or cannot be read."""
    try:
        return len(open_npy(path))
    except UserError:
        return 0


def _claim(folder: Path, manifest: dict[str, Any]) -> None:
    """Write the manifest into a new folder, or check that the folder belongs to the same samples."""
    path = folder / MANIFEST
    if not path.is_file():
        if any(not files.is_leftover(entry.name) for entry in folder.iterdir()):
            raise UserError(f"{folder} holds something else.", "Choose another --out.")
        files.write_text(path, json.dumps(manifest, indent=2) + "\n")
        return
    try:
        old = read_json(path, what="manifest")
        before = old["identity"] | {"shard": old["shard"]}
    except (UserError, KeyError, TypeError):
        raise UserError(f"{path} cannot be read.", "Choose another --out.") from None
    now = json.loads(json.dumps(manifest["identity"] | {"shard": manifest["shard"]}))
    changed = sorted(key for key in before.keys() | now.keys() if before.get(key) != now.get(key))
    if changed:
        raise UserError(f"{folder} holds other samples ({', '.join(changed)} differ).", "Choose another --out.")
