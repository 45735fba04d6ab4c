"""Fast noise for tests of laws."""

from __future__ import annotations

import hashlib

import pytest
import torch
from torch import Tensor

from di4c_cli.noise import Noise
from di4c_cli.sampler import tau


@pytest.fixture
def bulk_noise(monkeypatch: pytest.MonkeyPatch) -> None:
    """One generator per stream and name for the whole batch: seeding 200 000 of them per draw takes seconds.

    A law does not depend on how uniforms are seeded; two tests keep the real noise to show it is uniform.
    """

    def draw(self: Noise, name: str, shape: tuple[int, ...], source: object) -> Tensor:
        key = f"{self.seed}:{self.stream}:{name}:{self.index[0]}"
        seed = int.from_bytes(hashlib.blake2b(key.encode(), digest_size=4).digest(), "little")
        generator = torch.Generator().manual_seed(seed)
        return source((len(self), *shape), generator=generator, dtype=torch.float64)  # type: ignore[operator]

    def jumps(mean: Tensor, noise: Noise, name: str) -> Tensor:
        seed = int.from_bytes(hashlib.blake2b(noise.stream.encode(), digest_size=4).digest(), "little")
        return torch.poisson(mean, generator=torch.Generator().manual_seed(seed))

    monkeypatch.setattr(Noise, "_draw", draw)
    monkeypatch.setattr(tau, "poisson", jumps)
