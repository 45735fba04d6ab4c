"""All randomness of di4c: a draw is a function of (seed, stream, name, sample number)."""

from __future__ import annotations

import hashlib
from collections.abc import Sequence

import torch
from torch import Tensor


def _mix32(value: int) -> int:
    """A bijection on 32-bit integers that scatters neighbours (two xor-multiply rounds)."""
    value &= 0xFFFFFFFF
    value = ((value ^ (value >> 16)) * 0x7FEB352D) & 0xFFFFFFFF
    value = ((value ^ (value >> 15)) * 0x846CA68B) & 0xFFFFFFFF
    return value ^ (value >> 16)


def sample_seeds(key: str, index: Sequence[int]) -> list[int]:
    """Generator seeds for the samples `index` under one key; distinct samples get distinct seeds.

    torch's CPU generator uses 32 bits of its seed, so a plain hash would give some of 100 000 samples equal
    seeds. A bijection of the index cannot.
    """
    digest = hashlib.blake2b(key.encode(), digest_size=8).digest()
    low, high = int.from_bytes(digest[:4], "little"), int.from_bytes(digest[4:], "little")
    return [_mix32(_mix32(int(i) ^ low) ^ high) for i in index]


class Noise:
    """Named, stateless draws for a batch of numbered samples.

    A draw does not depend on the batch, the order of calls or the number of processes. Numbers are drawn on the
    CPU and moved, so they are equal on every device.
    """

    def __init__(
        self, seed: int, index: Sequence[int], stream: str = "sample", device: torch.device | str = "cpu"
    ) -> None:
        self.seed, self.stream = seed, stream
        self.index = [int(i) for i in index]
        self.device = torch.device(device)
        self._generator = torch.Generator()

    def __len__(self) -> int:
        return len(self.index)

    def at(self, *key: object) -> Noise:
        """The same samples in a stream of their own, e.g. `noise.at("step", 3)`."""
        return Noise(self.seed, self.index, "/".join([self.stream, *map(str, key)]), self.device)

    def uniform(self, name: str, *shape: int) -> Tensor:
        """`(B, *shape)` numbers in [0, 1), float64 (float32 on devices without it)."""
        return self._draw(name, shape, torch.rand)

    def normal(self, name: str, *shape: int) -> Tensor:
        """`(B, *shape)` standard normal numbers."""
        return self._draw(name, shape, torch.randn)

    def gumbel(self, name: str, *shape: int) -> Tensor:
        """`(B, *shape)` standard Gumbel numbers; finite, because 0 is moved to the smallest uniform above it."""
        return -torch.log(-torch.log(self.uniform(name, *shape).clamp_min(2.0**-53)))

    def _draw(self, name: str, shape: tuple[int, ...], source: object) -> Tensor:
        out = torch.empty((len(self), *shape), dtype=torch.float64)
        key = f"{self.seed}:{self.stream}:{name}"
        for row, seed in enumerate(sample_seeds(key, self.index)):
            self._generator.manual_seed(seed)
            source(shape, generator=self._generator, dtype=torch.float64, out=out[row])  # type: ignore[operator]
        if self.device.type != "mps":
            return out.to(self.device)
        # rounding 1 - 2**-53 to float32 gives 1.0, which the inverse CDF cannot take
        narrow = out.to(torch.float32)
        return (narrow.clamp_max(1 - 2.0**-24) if source is torch.rand else narrow).to(self.device)
