"""What the pretend GPU counts: kernels, and the memory that tensors hold."""

from __future__ import annotations

import sys
import weakref
from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import Any

import torch
from torch import Tensor


@dataclass
class Memory:
    """Bytes of all storages that a pretend tensor holds, and their peak."""

    now: int = 0
    peak: int = 0
    peak_line: str = ""
    holders: dict[int, list[int]] = field(default_factory=dict)

    def hold(self, tensor: Any) -> None:
        """Count a tensor's storage until its last tensor is gone."""
        storage = tensor.held.untyped_storage()
        entry = self.holders.setdefault(storage._cdata, [0, storage.nbytes()])
        if entry[0] == 0:
            self.now += entry[1]
            if self.now > self.peak:
                self.peak, self.peak_line = self.now, line()
        entry[0] += 1
        weakref.finalize(tensor.held, self._release, storage._cdata)

    def _release(self, key: int) -> None:
        entry = self.holders[key]
        entry[0] -= 1
        if entry[0] == 0:
            self.now -= entry[1]
            del self.holders[key]


@dataclass(frozen=True)
class Kernel:
    """One launch: where, which operation, bytes read and written, floating-point operations, widest float type."""

    line: str
    name: str
    bytes: int
    flops: int
    dtype: str


def line() -> str:
    """The innermost line of the package on the stack."""
    frame: Any = sys._getframe(1)
    while frame is not None and "/di4c_cli/" not in frame.f_code.co_filename:
        frame = frame.f_back
    if frame is None:
        return "autograd or optimizer"
    return f"{frame.f_code.co_filename.rpartition('/di4c_cli/')[2]}:{frame.f_lineno}"


def touched_bytes(x: Tensor) -> int:
    """Bytes of memory behind a tensor; expanded dimensions count once."""
    count = 1
    for size, stride in zip(x.shape, x.stride()):
        count *= size if stride else 1
    return count * x.element_size()


def widest(tensors: Sequence[Tensor]) -> str:
    kinds = {x.dtype for x in tensors if x.is_floating_point()}
    for dtype, name in ((torch.float64, "f64"), (torch.float32, "f32")):
        if dtype in kinds:
            return name
    return "bf16" if kinds else "int"
