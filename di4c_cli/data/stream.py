"""Endless numbered streams over items: the sample number decides the item, the dropped label and the flip.

Nothing is remembered between reads, so a position in training is one integer and processes cannot overlap.
"""

from __future__ import annotations

import torch
from torch import Tensor

from di4c_cli.data.batch import Batch
from di4c_cli.data.items import Items, check_range
from di4c_cli.noise import Noise, sample_seeds


class Shuffled:
    """Items in a fresh random order each epoch, labels dropped and images flipped with the given chances."""

    def __init__(
        self,
        items: Items,
        seed: int,
        stream: str,
        symbols: int,
        labels: int | None = None,
        label_drop: float = 0.0,
        flip: bool = False,
        where: str = "the data",
    ) -> None:
        self.items, self.seed, self.stream, self.where = items, seed, stream, where
        self.symbols, self.labels = symbols, labels
        self.label_drop, self.flip = label_drop, flip
        self.length = items.length
        self._orders: dict[int, Tensor] = {}

    def order(self, epoch: int) -> Tensor:
        """The permutation of one epoch, a function of (seed, stream, epoch)."""
        if epoch not in self._orders:
            (seed,) = sample_seeds(f"{self.seed}:{self.stream}:order", [epoch])
            generator = torch.Generator().manual_seed(seed)
            # a batch touches two epochs at most (or many tiny ones, which are cheap to draw again)
            self._orders = {key: value for key, value in self._orders.items() if key == epoch - 1}
            self._orders[epoch] = torch.randperm(len(self.items), generator=generator)
        return self._orders[epoch]

    def item(self, sample: int) -> int:
        """Which item the sample with this number is."""
        epoch, place = divmod(sample, len(self.items))
        return int(self.order(epoch)[place])

    def read(self, start: int, count: int) -> Batch:
        index = list(range(start, start + count))
        picks = [self.item(sample) for sample in index]
        x0, label = self.items.rows(picks)
        check_range(x0, label, picks, self.where, self.symbols, self.labels)
        if self.labels is None:
            label = None
        noise = Noise(self.seed, index, self.stream)
        if label is not None and self.label_drop > 0:
            label = torch.where(noise.uniform("drop") < self.label_drop, -1, label)
        if self.flip and self.items.shape is not None:
            x0 = torch.where((noise.uniform("flip") < 0.5)[:, None], self._mirror(x0), x0)
        return Batch(index, x0, label)

    def _mirror(self, x: Tensor) -> Tensor:
        assert self.items.shape is not None
        return x.view(-1, *self.items.shape).flip(-1).reshape(x.shape)


class NoData:
    """Samples without x0 (reference: teacher); labels are drawn evenly so that guidance is distilled too."""

    def __init__(
        self, length: int, seed: int, stream: str, labels: int | None = None, label_drop: float = 0.0
    ) -> None:
        self.length, self.seed, self.stream = length, seed, stream
        self.labels, self.label_drop = labels, label_drop

    def read(self, start: int, count: int) -> Batch:
        index = list(range(start, start + count))
        if self.labels is None:
            return Batch(index)
        noise = Noise(self.seed, index, self.stream)
        label = (noise.uniform("label") * self.labels).long()
        return Batch(index, None, torch.where(noise.uniform("drop") < self.label_drop, -1, label))
