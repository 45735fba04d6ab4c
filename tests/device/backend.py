"""What a real backend does in C++, for the pretend GPU: tensors from Python data, attention kernels, autocast."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import contextmanager, nullcontext
from typing import TYPE_CHECKING, Any
from unittest import mock

import torch
import torch.nn.functional as F
from torch import Tensor
from torch.utils._pytree import tree_map

if TYPE_CHECKING:
    from tests.device.pretend import Watch

aten = torch.ops.aten
DEVICE = "gpu"
ACTIVE: list[Watch] = []
"""The watches that are entered, the innermost last."""


def is_pretend(x: Any) -> bool:
    """Whether x is a tensor on the pretend GPU."""
    return isinstance(x, Tensor) and x.device.type == DEVICE


@contextmanager
def patches() -> Iterator[None]:
    """What a real backend does in C++: tensors from Python data, attention kernels, parameters that move."""
    swap = torch.__future__.get_swap_module_params_on_conversion()
    torch.__future__.set_swap_module_params_on_conversion(True)
    with (
        mock.patch.object(torch, "tensor", _from_data(torch.tensor)),
        mock.patch.object(torch, "as_tensor", _from_data(torch.as_tensor)),
        mock.patch.object(torch, "clear_autocast_cache", _CASTS.clear),
        mock.patch.object(F, "scaled_dot_product_attention", _attention(F.scaled_dot_product_attention)),
    ):
        try:
            yield
        finally:
            torch.__future__.set_swap_module_params_on_conversion(swap)
            _CASTS.clear()


def _from_data(make: Callable[..., Tensor]) -> Callable[..., Tensor]:
    def tensor(data: Any, *args: Any, device: Any = None, **options: Any) -> Tensor:
        if device is None or torch.device(device).type != DEVICE:
            return make(data, *args, device=device, **options)
        return make(data, *args, **options).to(device)

    return tensor


def _attention(original: Callable[..., Tensor]) -> Callable[..., Tensor]:
    def attention(q: Tensor, k: Tensor, v: Tensor, **options: Any) -> Tensor:
        if q.device.type != DEVICE:
            return original(q, k, v, **options)
        if torch.is_autocast_enabled(DEVICE):
            q, k, v = (x.to(torch.get_autocast_dtype(DEVICE)) for x in (q, k, v))
        if any(x.stride(-1) != 1 for x in (q, k, v)):  # CUDA's fused kernels refuse these too
            ACTIVE[-1].unfused[ACTIVE[-1].line()] += 1
            return aten._scaled_dot_product_attention_math(q, k, v)[0]  # type: ignore[no-any-return]
        return aten._scaled_dot_product_flash_attention_for_cpu(q, k, v)[0]  # type: ignore[no-any-return]

    return attention


# Autocast of the pretend device: torch's rules for CUDA, as far as the package uses them.
_LIBRARY = torch.library.Library("aten", "IMPL")
_FALLBACK = torch.library.Library("_", "IMPL")
_AUTOCAST = torch._C.DispatchKeySet(torch._C.DispatchKey.AutocastPrivateUse1)
_NARROW = ["linear", "mm", "addmm", "bmm", "baddbmm", "matmul", "conv1d", "conv2d", "einsum"]
_WIDE = ["exp", "log", "log_softmax.int", "softmax.int", "logsumexp", "cumsum", "sum", "sum.dim_IntList", "layer_norm"]
_WIDE += ["group_norm", "pow.Tensor_Scalar", "log1p", "prod"]
_CASTS: dict[int, tuple[Tensor, Tensor]] = {}
"""Converted weights, as in torch's cache of autocast."""


def _narrowed(x: Any) -> Any:
    dtype = torch.get_autocast_dtype(DEVICE)
    if not (is_pretend(x) and x.dtype in (torch.float32, torch.float16, torch.bfloat16)):
        return x
    if x.dtype == dtype:
        return x
    cacheable = x.is_leaf and x.requires_grad and not x._is_view() and torch.is_autocast_cache_enabled()
    if cacheable and id(x) in _CASTS:
        return _CASTS[id(x)][1]
    ACTIVE[-1].cast[ACTIVE[-1].line()] += x.numel() * 6
    with torch.enable_grad() if cacheable else nullcontext():
        converted = x.to(dtype)
    if cacheable:
        _CASTS[id(x)] = (x, converted)
    return converted


def _widened(x: Any) -> Any:
    return x.float() if is_pretend(x) and x.dtype in (torch.float16, torch.bfloat16) else x


def _converting(op: Any, convert: Callable[[Any], Any]) -> Callable[..., Any]:
    def run(*args: Any, **options: Any) -> Any:
        with torch._C._ExcludeDispatchKeyGuard(_AUTOCAST):
            return op(*tree_map(convert, args), **tree_map(convert, options))

    return run


def _operation(name: str) -> Any:
    packet, _, overload = name.partition(".")
    return getattr(getattr(aten, packet), overload or "default")


for _name in _NARROW:
    _LIBRARY.impl(_name, _converting(_operation(_name), _narrowed), "AutocastPrivateUse1")
for _name in _WIDE:
    _LIBRARY.impl(_name, _converting(_operation(_name), _widened), "AutocastPrivateUse1")
_FALLBACK.fallback(torch.library.fallthrough_kernel, "AutocastPrivateUse1")
