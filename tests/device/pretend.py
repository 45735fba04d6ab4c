"""A GPU that is not there: tensors that claim the device `gpu` and keep their numbers on the CPU, or only their shapes.

`Watch` runs every operation on them, raises where tensors of two devices meet, and counts kernels, bytes, arithmetic
and waits (the host waits for the device) by line of the package. Weights on the meta device have shapes only, so a
step of a published model takes seconds; integers and noise always have numbers, because shapes depend on them.
"""

from __future__ import annotations

import sys
import weakref
from collections import Counter
from contextlib import ExitStack
from dataclasses import dataclass, field
from typing import Any

import torch
from torch import Tensor, nn
from torch.utils._python_dispatch import TorchDispatchMode
from torch.utils._pytree import tree_leaves, tree_map
from torch.utils.backend_registration import _DummyBackendModule, _setup_privateuseone_for_python_backend
from torch.utils.flop_counter import flop_registry

from tests.device.backend import ACTIVE, DEVICE, patches
from tests.device.counts import Kernel, Memory, line, touched_bytes, widest

WAITING = {
    "nonzero",
    "masked_select",
    "_local_scalar_dense",
    "unique_consecutive",
    "_unique2",
    "unique_dim",
    "bincount",
}
WAITING |= {"repeat_interleave", "equal", "is_nonzero", "masked_scatter", "linalg_eigh", "_linalg_eigh"}
"""Operations whose result the host needs, e.g. as a shape."""
FREE = {
    "view",
    "_unsafe_view",
    "reshape",
    "expand",
    "t",
    "transpose",
    "permute",
    "select",
    "slice",
    "unsqueeze",
    "squeeze",
}
FREE |= {"detach", "alias", "as_strided", "split", "split_with_sizes", "unbind", "_reshape_alias", "chunk", "unfold"}
FREE |= {"diagonal", "lift_fresh", "empty", "empty_strided", "empty_like", "new_empty", "new_empty_strided"}
"""Operations without a kernel."""
TENSORS_PER_LAUNCH = 30
"""Tensors that one launch of a fused or foreach kernel takes, at least."""
INDEXING = {"index", "index_put", "index_put_", "_index_put_impl_"}


class Backend(_DummyBackendModule):
    """What torch asks of a device's module."""

    def get_amp_supported_dtype(self) -> list[torch.dtype]:
        return [torch.bfloat16, torch.float16]

    def get_rng_state(self, device: object = None) -> Tensor:
        return torch.get_rng_state()

    def set_rng_state(self, state: Tensor, device: object = None) -> None:
        torch.set_rng_state(state)


_setup_privateuseone_for_python_backend(DEVICE, backend_module=Backend())


class PretendTensor(Tensor):
    """A tensor on the pretend GPU; `held` has its numbers (CPU) or only its shape (meta)."""

    held: Tensor

    @staticmethod
    def __new__(cls, held: Tensor) -> PretendTensor:
        return Tensor._make_wrapper_subclass(  # type: ignore[attr-defined, no-any-return]
            cls,
            held.shape,
            strides=held.stride(),
            storage_offset=held.storage_offset(),
            dtype=held.dtype,
            device=torch.device(DEVICE, 0),
        )

    def __init__(self, held: Tensor) -> None:
        self.held = held
        if ACTIVE:
            ACTIVE[-1].memory.hold(self)

    def __repr__(self, **_: object) -> str:  # type: ignore[override]
        return f"PretendTensor({tuple(self.shape)}, {self.dtype})"

    def tolist(self) -> Any:
        ACTIVE[-1].wait("tolist")
        return (self.held if self.held.device.type == "cpu" else torch.zeros(self.shape, dtype=self.dtype)).tolist()

    def numpy(self, **_: object) -> Any:
        raise TypeError("a tensor on a GPU cannot be converted to numpy")

    def __deepcopy__(self, memo: dict[int, Any]) -> Tensor:
        new: Tensor = PretendTensor(self.held.clone())
        if isinstance(self, nn.Parameter):
            new = nn.Parameter(new, self.requires_grad)
        memo[id(self)] = new
        return new

    @classmethod
    def __torch_dispatch__(cls, op: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        return ACTIVE[-1].run(op, args, kwargs or {})


class Watch(TorchDispatchMode):
    """Runs operations of pretend tensors, checks their devices and counts."""

    def __init__(self) -> None:
        super().__init__()
        self.waits: Counter[tuple[str, str]] = Counter()
        self.kernels: list[Kernel] = []
        self.copied: Counter[str] = Counter()
        """Bytes from the CPU, by line."""
        self.cast: Counter[str] = Counter()
        """Bytes of weights and activations that autocast converted, by line."""
        self.unfused: Counter[str] = Counter()
        """Calls of attention that no fused kernel takes."""
        self.memory = Memory()
        self._stack = ExitStack()

    def __enter__(self) -> Watch:
        ACTIVE.append(self)
        self._stack.enter_context(patches())
        super().__enter__()
        return self

    def __exit__(self, *error: Any) -> None:
        super().__exit__(*error)
        self._stack.close()
        ACTIVE.pop()

    def clear(self) -> None:
        """Forget what was counted; memory stays."""
        for counts in (self.waits, self.kernels, self.copied, self.cast, self.unfused):
            counts.clear()
        self.memory.peak = self.memory.now

    @staticmethod
    def _shape(x: Any) -> Any:
    return x.to("meta") if isinstance(x, Tensor) and x.device.type != "meta" else x


def _integer_indices(indices: list[Tensor | None]) -> list[Tensor | None]:
    out: list[Tensor | None] = []
    for index in indices:
        out += list(index.nonzero(as_tuple=True)) if index is not None and index.dtype == torch.bool else [index]
    return out
