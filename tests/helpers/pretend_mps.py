"""A pretend Apple GPU: tensors whose `device` is `mps` while their numbers stay on the CPU.

Operations that mix devices and tensors of type float64 are rejected, as on the real device. Index tensors and tensors
of one number may be on the CPU.
"""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

import torch
from torch import Tensor
from torch.overrides import TorchFunctionMode
from torch.utils._pytree import tree_leaves, tree_map

MPS = torch.device("mps", 0)
INDEXING = ("index.", "index_put")


class PretendTensor(Tensor):
    """A tensor on the device; `numbers` has its contents."""

    numbers: Tensor
    device = property(lambda self: MPS)  # type: ignore[assignment]

    @staticmethod
    def __new__(cls, numbers: Tensor) -> PretendTensor:
        if numbers.dtype == torch.float64:
            raise TypeError("MPS has no float64")
        layout = {"strides": numbers.stride(), "storage_offset": numbers.storage_offset(), "dtype": numbers.dtype}
        made: PretendTensor = Tensor._make_wrapper_subclass(cls, numbers.shape, **layout)  # type: ignore[attr-defined]
        made.numbers = numbers.detach()  # a new object: `Module.to` swaps the contents of the old one
        return made

    def tolist(self) -> Any:
        return self.numbers.tolist()

    def numpy(self, *, force: bool = False) -> Any:
        raise TypeError("can't convert mps:0 device type tensor to numpy")

    @classmethod
    def __torch_dispatch__(cls, op: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        """One operation on the device."""
        name = str(op).removeprefix("aten.")
        checked = (args[:1], args[2:]) if name.startswith(INDEXING) else (args, kwargs)
        foreign = [x for x in tree_leaves(checked) if isinstance(x, Tensor) and not isinstance(x, cls) and x.dim()]
        if foreign and not name.startswith("copy_"):
            raise RuntimeError(f"{name} of tensors on cpu and mps")
        own = {id(x.numbers): x for x in tree_leaves((args, kwargs)) if isinstance(x, cls)}
        args, kwargs = tree_map(bare, (args, kwargs or {}))
        return tree_map(lambda x: own[id(x)] if id(x) in own else on_device(x), op(*args, **kwargs))


class _NamedDevice(TorchFunctionMode):
    """Calls that name a device, such as `.to("mps")` and `.cpu()`."""

    def __torch_function__(self, function: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        kwargs = kwargs or {}
        names = tree_leaves((args, kwargs))
        if getattr(function, "__name__", "") in ("device", "_parse_to", "einsum"):
            return function(*args, **kwargs)
        like = function in (Tensor.to, Tensor.type_as) and isinstance(args[-1], PretendTensor) and len(args) == 2
        if like or any(named(x, "mps") for x in names):
            plain = tree_map(lambda x: "cpu" if named(x, "mps") else bare(x), (args, kwargs))
            return tree_map(on_device, function(*plain[0], **plain[1]))
        if function is Tensor.cpu or (function is Tensor.to and any(named(x, "cpu") for x in names)):
            return function(*tree_map(bare, args), **kwargs)
        return function(*args, **kwargs)


def named(x: object, kind: str) -> bool:
    """Whether a value is the name of a device of that kind."""
    return isinstance(x, (str, torch.device)) and str(x).partition(":")[0] == kind


def bare(x: Any) -> Any:
    """The numbers of a tensor, wherever it claims to be."""
    return x.numbers if isinstance(x, PretendTensor) else x


def on_device(x: Any) -> Any:
    """A tensor on the device."""
    return PretendTensor(x) if isinstance(x, Tensor) and not isinstance(x, PretendTensor) else x


@contextmanager
def pretend_mps() -> Iterator[None]:
    """`.to("mps")` works in this block."""
    before = torch.__future__.get_swap_module_params_on_conversion()
    torch.__future__.set_swap_module_params_on_conversion(True)
    try:
        with _NamedDevice(), torch.no_grad():
            yield
    finally:
        torch.__future__.set_swap_module_params_on_conversion(before)
