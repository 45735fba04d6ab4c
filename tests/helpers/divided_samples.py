"""Samples of a model in one or several processes: as shards, and as one array in the main process.

python -m tests.helpers.divided_samples MODEL OUT
"""

from __future__ import annotations

import sys
from pathlib import Path

import numpy as np

from di4c_cli.generate import shards
from di4c_cli.generate.request import SampleRequest, prepare
from di4c_cli.process_group import process_group

SHARD = 100
SAMPLES = 310
"""Three whole shards and a small one: two processes write two of them each."""


def main(model: str, out: str) -> None:
    shards.SYMBOLS_PER_SHARD = 1
    with process_group("cpu") as group:
        prepared = prepare(SampleRequest(teacher=model, steps=2, n=SAMPLES), lambda text: None)
        manifest = shards.stream(prepared, Path(out), 30, group=group)
        assert manifest["shard"] == SHARD
        grown = prepare(SampleRequest(teacher=model, steps=2, n=SAMPLES + 2 * SHARD + 50), lambda text: None)
        shards.stream(grown, Path(out), None, group=group)  # three shards are missing: the last one is divided
        ids = prepared.draw_together(group, 5, 77)
        if group.main:
            np.save(Path(out) / "together.npy", ids.numpy())


if __name__ == "__main__":
    main(*sys.argv[1:])
