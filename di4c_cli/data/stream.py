"""Endless numbered streams of samples: the sample number decides the item, the label dropout and the flip.

Nothing is remembered between reads, so a position in training is one integer and processes cannot overlap.
"""

from __future__ import annotations

from dataclasses import dataclass
from functools import lru_cache
from typing import Protocol

import torch
from torch import Tensor

from di4c_cli.data.items import Items, Rows, check_rows
from di4c_cli.noise import Noise, sample_seeds


@dataclass(frozen=True)
class Batch:
    """Samples `index` of the global stream; `x0` is None where there is no data (`data: teacher`)."""

    index: list[int]
    x0: Tensor | None = None
    label: Tensor | None = None

    def __len__(self) -> int:
        return len(self.index)

    def to(self, device: torch.device | str) -> Batch:
        """The same batch on a device; the host does not wait for a copy from pinned memory."""
        x0 = None if self.x0 is None else self.x0.to(device, non_blocking=True)
        return Batch(self.index, x0, None if self.label is None else self.label.to(device, non_blocking=True))

    def pinned(self) -> Batch:
        """The same batch in page-locked memory, for copies to a GPU."""
        x0 = None if self.x0 is None else self.x0.pin_memory()
        return Batch(self.index, x0, None if self.label is None else self.label.pin_memory())


class Source(Protocol):
    """An endless, shuffled, numbered stream of samples; a position in it is one integer."""

    length: int
    """D of one sample."""

    def read(self, start: int, count: int) -> Batch:
        """Samples start … start + count - 1."""


@dataclass(frozen=True)
class DataSpec:
    """What a round requires of its data: the teacher's ranges, label dropout, flips and crops."""

    seed: int
    stream: str
    length: int
    symbols: int
    labels: int | None = None
    label_dropout: float = 0.0
    flip: bool = False
    random_crop: bool = False
    device: torch.device | str = "cpu"  # where images are encoded

    def order(self, number: int, count: int) -> Tensor:
        """Permutation `number` of `count` items, a function of (seed, stream, number)."""
        return _permutation(f"{self.seed}:{self.stream}:order", number, count)

    def batch(self, items: Rows, index: list[int], picks: list[int]) -> Batch:
        """Samples `index`, which are the items `picks`: checked, flipped, with label dropout."""
        noise = Noise(self.seed, index, self.stream)
        mirror = noise.uniform("flip") < 0.5 if self.flip else None
        x0, label = items.rows(picks, mirror)
        check_rows(items, picks, x0, label, self.symbols, self.labels)
        if label is None or self.labels is None:
            return Batch(index, x0)
        return Batch(index, x0, self.drop_labels(label, noise))

    def drop_labels(self, label: Tensor, noise: Noise) -> Tensor:
        """The labels, of which a share of `label_dropout` is replaced by -1."""
        return torch.where(noise.uniform("drop") < self.label_dropout, -1, label)


@lru_cache(maxsize=4)
def _permutation(seed: str, number: int, count: int) -> Tensor:
    """Kept from one sample to the next; a batch touches two epochs or shards at most, or many tiny ones."""
    (own,) = sample_seeds(seed, [number])
    return torch.randperm(count, generator=torch.Generator().manual_seed(own))


class Shuffled:
    """Items in a fresh random order each epoch."""

    def __init__(self, items: Items, spec: DataSpec) -> None:
        self.items, self.spec = items, spec
        self.length = items.length

    def item(self, sample: int) -> int:
        """The item behind a sample number."""
        epoch, place = divmod(sample, len(self.items))
        return int(self.spec.order(epoch, len(self.items))[place])

    def read(self, start: int, count: int) -> Batch:
        """Samples start … start + count - 1."""
        index = list(range(start, start + count))
        return self.spec.batch(self.items, index, [self.item(sample) for sample in index])


class NoData:
    """Samples without x0 (`data: teacher`); labels are drawn uniformly so that guidance is distilled too."""

    def __init__(self, spec: DataSpec) -> None:
        self.spec, self.length = spec, spec.length

    def read(self, start: int, count: int) -> Batch:
        """Numbers and labels alone."""
        index = list(range(start, start + count))
        if self.spec.labels is None:
            return Batch(index)
        noise = Noise(self.spec.seed, index, self.spec.stream)
        label = (noise.uniform("label") * self.spec.labels).long()
        return Batch(index, None, self.spec.drop_labels(label, noise))


class SyntheticMixture:
    """A stream in which a `share` of the samples comes from a pool of the teacher's samples; all without data.

    Sample numbers alone decide which samples come from the pool `(n, D)`. Sample i of it has the label i modulo
    `labels`, and label dropout applies to them too: with a label a teacher is often much better than without, and
    the student learns that for both.
    """

    def __init__(self, inner: Source, pool: Tensor, labels: int | None, share: float, seed: int) -> None:
        self.inner, self.pool, self.share, self.seed, self.length = inner, pool, share, seed, inner.length
        self.label = None if labels is None else torch.arange(len(pool)) % labels

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
        synthetic = noise.uniform("choose") < self.share
        if label is not None and batch.label is not None:
            label = torch.where(synthetic, label, batch.label)
        return Batch(batch.index, torch.where(synthetic[:, None], own, batch.x0), label)
