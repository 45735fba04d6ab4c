"""The teacher's own samples among the data: drawn once before a round, then picked at random."""

from __future__ import annotations

import torch

from di4c_cli.data.batch import Batch, Source
from di4c_cli.model import Model
from di4c_cli.noise import Noise, sample_seeds


class Taught:
    """A stream in which a `share` of the samples comes from a pool of the teacher's; all of them without data.

    Which samples those are depends on their numbers alone, as everything else in a stream. A teacher with labels
    draws equally many of each, and they are dropped where those of the data are: with a label a teacher is often
    much better than without, and its student learns that for both.
    """

    def __init__(
        self, inner: Source, teacher: Model, share: float, count: int, steps: int, seed: int
    ) -> None:
        self.inner, self.share, self.seed, self.length = inner, share, seed, inner.length
        (draws,) = sample_seeds(f"{seed}:pool", [0])
        labels = teacher.denoiser.labels
        self.label = None if labels is None else torch.arange(count) % labels
        self.pool = teacher.sample(count, steps=steps, seed=draws % 2**31, label=self.label).cpu()

    def read(self, start: int, count: int) -> Batch:
        """Samples start … start + count - 1."""
        batch = self.inner.read(start, count)
        noise = Noise(self.seed, batch.index, "pool")
        pick = (noise.uniform("pick") * len(self.pool)).long()
        own, label = self.pool[pick], batch.label
        if label is not None and self.label is not None:
            label = torch.where(label < 0, -1, self.label[pick])
        if batch.x0 is None:
            return Batch(batch.index, own, label)
        taught = noise.uniform("choose") < self.share
        if label is not None and batch.label is not None:
            label = torch.where(taught, label, batch.label)
        return Batch(batch.index, torch.where(taught[:, None], own, batch.x0), label)
