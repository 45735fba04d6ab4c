"""Endless numbered streams over items: the sample number decides the item, the dropped label and the flip.

Nothing is remembered between reads, so a position in training is one integer and processes cannot overlap.
"""

from __future__ import annotations

from dataclasses import dataclass

import torch
from torch import Tensor

from di4c_cli.data.batch import Batch
from di4c_cli.data.items import Items, check_rows
from di4c_cli.noise import Noise, sample_seeds


@dataclass(frozen=True)
class Wanted:
    """What a round asks of its data: the teacher's ranges, and draws of its own."""

    seed: int
    stream: str
    length: int
    symbols: int
    labels: int | None = None
    label_drop: float = 0.0
    flip: bool = False
    device: torch.device | str = "cpu"  # where images are encoded

    def order(self, number: int, count: int) -> Tensor:
        """Permutation `number` of `count` items, a function of (seed, stream, number)."""
        (seed,) = sample_seeds(f"{self.seed}:{self.stream}:order", [number])
        return torch.randperm(count, generator=torch.Generator().manual_seed(seed))

    def batch(self, items: Items, index: list[int], picks: list[int]) -> Batch:
        """Samples `index`, which are the items `picks`: checked, flipped, some labels dropped."""
        noise = Noise(self.seed, index, self.stream)
        mirror = noise.uniform("flip") < 0.5 if self.flip else None
        x0, label = items.rows(picks, mirror)
        check_rows(items, picks, x0, label, self.symbols, self.labels)
        if label is None or self.labels is None:
            return Batch(index, x0)
        return Batch(index, x0, torch.where(noise.uniform("drop") < self.label_drop, -1, label))


class Shuffled:
    """Items in a fresh random order each epoch."""

    def __init__(self, items: Items, wanted: Wanted) -> None:
        self.items, self.wanted = items, wanted
        self.length = items.length
        self._orders: dict[int, Tensor] = {}

    def item(self, sample: int) -> int:
        """Which item the sample with this number is."""
        epoch, place = divmod(sample, len(self.items))
        if epoch not in self._orders:
            # a batch touches two epochs at most (or many tiny ones, which are cheap to draw again)
            self._orders = {key: value for key, value in self._orders.items() if key == epoch - 1}
            self._orders[epoch] = self.wanted.order(epoch, len(self.items))
        return int(self._orders[epoch][place])

    def read(self, start: int, count: int) -> Batch:
        """Samples start … start + count - 1."""
        index = list(range(start, start + count))
        return self.wanted.batch(self.items, index, [self.item(sample) for sample in index])


class NoData:
    """Samples without x0 (reference: teacher); labels are drawn evenly so that guidance is distilled too."""

    def __init__(self, wanted: Wanted) -> None:
        self.wanted, self.length = wanted, wanted.length

    def read(self, start: int, count: int) -> Batch:
        """Numbers and labels alone."""
        index = list(range(start, start + count))
        if self.wanted.labels is None:
            return Batch(index)
        noise = Noise(self.wanted.seed, index, self.wanted.stream)
        label = (noise.uniform("label") * self.wanted.labels).long()
        return Batch(index, None, torch.where(noise.uniform("drop") < self.wanted.label_drop, -1, label))
