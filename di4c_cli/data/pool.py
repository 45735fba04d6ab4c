"""The teacher's own samples among the data: drawn once before a round, then picked at random."""

from __future__ import annotations

import torch

from di4c_cli.data.batch import Batch, Source
from di4c_cli.model import Model
from di4c_cli.noise import Noise, sample_seeds


class Taught:
    """A stream in which a `share` of the samples comes from a pool of the teacher's; all of them without data.

    Which samples those are depends on their numbers alone, as everything else in a stream. They have no label.
    """

    def __init__(
        self, inner: Source, teacher: Model, share: float, count: int, steps: int, seed: int
    ) -> None:
        self.inner, self.share, self.seed, self.length = inner, share, seed, inner.length
        (draws,) = sample_seeds(f"{seed}:pool", [0])
        self.pool = teacher.sample(count, steps=steps, seed=draws % 2**31).cpu()

    def read(self, start: int, count: int) -> Batch:
        """Samples start … start + count - 1."""
        batch = self.inner.read(start, count)
        noise = Noise(self.seed, batch.index, "pool")
        own = self.pool[(noise.uniform("pick") * len(self.pool)).long()]
        if batch.x0 is None:
            return Batch(batch.index, own, None if batch.label is None else torch.full_like(batch.label, -1))
        taught = noise.uniform("choose") < self.share
        label = None if batch.label is None else torch.where(taught, -1, batch.label)
        return Batch(batch.index, torch.where(taught[:, None], own, batch.x0), label)
