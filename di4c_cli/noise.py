"""All randomness of di4c: one generator per sample, so that a draw depends on the sample's number alone."""

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


def sample_seed(seed: int, stream: str, index: int) -> int:
    """The generator seed of sample `index`; distinct for distinct indices of one (seed, stream).

    torch's CPU generator uses 32 bits of its seed, so a plain hash would give two of 100 000 samples the same
    numbers now and then. A bijection of the index cannot.
    """
    key = hashlib.blake2b(f"{stream}:{seed}".encode(), digest_size=8).digest()
    low, high = int.from_bytes(key[:4], "little"), int.from_bytes(key[4:], "little")
    return _mix32(_mix32(index ^ low) ^ high)


class Noise:
    """A batch of independent random streams, one per sample.

    Numbers are drawn on the CPU and moved, so every device sees the same ones.
    """

    def __init__(
        self, seed: int, index: Sequence[int], stream: str = "sample", device: torch.device | str = "cpu"
    ) -> None:
        self.device = torch.device(device)
        self._generators = []
        for i in index:
            generator = torch.Generator()
            generator.manual_seed(sample_seed(seed, stream, int(i)))
            self._generators.append(generator)

    def __len__(self) -> int:
        return len(self._generators)

    @property
    def dtype(self) -> torch.dtype:
        """float64, or float32 on devices without it."""
        return torch.float32 if self.device.type == "mps" else torch.float64

    def uniform(self, *shape: int) -> Tensor:
        """`(B, *shape)` numbers in [0, 1)."""
        return self._gather([torch.rand(shape, generator=g, dtype=torch.float64) for g in self._generators], shape)

    def normal(self, *shape: int) -> Tensor:
        """`(B, *shape)` standard normal numbers."""
        return self._gather([torch.randn(shape, generator=g, dtype=torch.float64) for g in self._generators], shape)

    def gumbel(self, *shape: int) -> Tensor:
        """`(B, *shape)` standard Gumbel numbers; finite because 0 is moved to the smallest uniform above it."""
        uniform = self.uniform(*shape).clamp_min(2.0**-53)
        return -torch.log(-torch.log(uniform))

    def _gather(self, rows: list[Tensor], shape: tuple[int, ...]) -> Tensor:
        stacked = torch.stack(rows) if rows else torch.empty((0, *shape), dtype=torch.float64)
        if self.dtype is torch.float32:
            # rounding 1 - 2**-53 to float32 gives 1.0, which the inverse CDF may not see
            stacked = stacked.to(torch.float32)
            stacked = stacked.clamp_max(1 - 2.0**-24) if bool((stacked == 1).any()) else stacked
        return stacked.to(self.device)
