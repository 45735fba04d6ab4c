"""All randomness of di4c: a draw is a function of (seed, stream, name, sample number)."""

from __future__ import annotations

import hashlib
import math
from collections.abc import Callable, Sequence

import torch
from torch import Tensor

GOLDEN = -7046029254386353131
"""2^64 divided by the golden ratio, odd, as a signed number: multiples of it differ in many bits."""
MIXING = ((30, -4658895280553007687), (27, -7723592293110705685))
"""Shifts and odd factors of the mixing rounds: variant 13 of D. Stafford, as in SplitMix64."""

CACHED_NUMBERS = 2**15
"""Numbers drawn at a time on the CPU."""


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

    A draw does not depend on the batch, the order of calls or the number of processes. A counter-based generator in
    integer operations runs on the device itself: element j of sample i is a hash of (seed, stream, name, i, j), so
    uniforms have the same bits on every device. Normal and Gumbel numbers are functions of them and may differ in
    the last place.
    """

    def __init__(
        self,
        seed: int,
        index: Sequence[int] | Tensor,
        stream: str = "sample",
        device: torch.device | str = "cpu",
        part: tuple[int, int] = (0, 1),
    ) -> None:
        """`part`: number and count of the equal parts into which `divided` cuts every draw."""
        self.seed, self.stream, self.part = seed, stream, part
        self.device = torch.device(device)
        self.index = _numbers(index, self.device)
        self._hashes: Tensor | None = None

    def __len__(self) -> int:
        return len(self.index)

    def at(self, *key: object) -> Noise:
        """The same samples in a stream of their own, e.g. `noise.at("step", 3)`."""
        other = Noise(self.seed, self.index, "/".join([self.stream, *map(str, key)]), self.device, self.part)
        other._hashes = self._samples()
        return other

    def divided(self, number: int, count: int) -> Noise:
        """Part `number` of `count`: a draw `(B, n, ...)` is that part of a draw `(B, n·count, ...)` without parts."""
        return Noise(self.seed, self.index, self.stream, self.device, (number, count))

    def of(self, rows: Tensor) -> Noise:
        """The noise of some samples of the batch, by their place `(n,)` in it."""
        return Noise(self.seed, self.index[rows], self.stream, self.device, self.part)

    def uniform(self, name: str, *shape: int) -> Tensor:
        """`(B, *shape)` numbers in [0, 1), multiples of 2^-53 in float64 (of 2^-24 in float32 on MPS)."""
        bits, dtype = (24, torch.float32) if self.device.type == "mps" else (53, torch.float64)
        return self._draw(name, shape, lambda value: _shift(value, 64 - bits).to(dtype).mul_(2.0**-bits))

    def normal(self, name: str, *shape: int) -> Tensor:
        """`(B, *shape)` standard normal numbers, by the inverse distribution function."""
        single = self.device.type == "mps"
        return self._draw(name, shape, (lambda value: _normal(value).float()) if single else _normal)

    def gumbel(self, name: str, *shape: int) -> Tensor:
        """`(B, *shape)` standard Gumbel numbers; finite, because 0 is moved to the smallest uniform above it."""
        return -torch.log(-torch.log(self.uniform(name, *shape).clamp_min(2.0**-53)))

    def _draw(self, name: str, shape: tuple[int, ...], number: Callable[[Tensor], Tensor]) -> Tensor:
        """`(B, *shape)` numbers made of 64 random bits each; on the CPU for MPS, whose integers are untested."""
        key = hashlib.blake2b(f"{self.seed}:{self.stream}:{name}".encode(), digest_size=8).digest()
        sample = (self._samples() ^ int.from_bytes(key, "little", signed=True))[:, None]
        size = math.prod(shape)
        element = torch.arange(self.part[0] * size, (self.part[0] + 1) * size, device=sample.device).mul_(GOLDEN)
        if sample.device.type == "cpu":  # pieces that stay in the processor's cache
            size = CACHED_NUMBERS // max(1, len(sample))
        parts = [number(_mix(sample ^ piece)) for piece in element.split(max(1, size))]
        out = parts[0] if len(parts) == 1 else torch.cat(parts, 1)
        return out.view(len(sample), *shape).to(self.device)

    def _samples(self) -> Tensor:
        """A hash of every sample's number, shared by all draws."""
        if self._hashes is None:
            index = self.index.cpu() if self.device.type == "mps" else self.index
            self._hashes = _mix(index ^ GOLDEN)
        return self._hashes


def _normal(bits: Tensor) -> Tensor:
    """Normal numbers at the midpoints of 2^52 cells of (0, 1)."""
    return torch.special.ndtri(_shift(bits, 12).to(torch.float64).add_(0.5).mul_(2.0**-52))


def _numbers(index: Sequence[int] | Tensor, device: torch.device) -> Tensor:
    """Sample numbers as int64 on the device; consecutive ones are made there, without a copy."""
    if isinstance(index, Tensor):
        return index.to(device)
    if len(index) and list(index) == list(range(index[0], index[0] + len(index))):
        return torch.arange(index[0], index[0] + len(index), device=device)
    return torch.tensor(list(index), dtype=torch.long, device=device)


def _shift(value: Tensor, places: int) -> Tensor:
    """Logical shift to the right; torch's own repeats the sign."""
    return (value >> places).bitwise_and_((1 << (64 - places)) - 1)


def _mix(value: Tensor) -> Tensor:
    """A bijection on 64-bit integers in which every bit depends on every bit (two xor-multiply rounds); in place."""
    for places, factor in MIXING:
        value.bitwise_xor_(_shift(value, places)).mul_(factor)
    return value.bitwise_xor_(_shift(value, 31))
