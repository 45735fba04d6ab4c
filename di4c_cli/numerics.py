"""Numerical helpers that several networks share: sinusoids, precision and calls of a fixed number of rows."""

from __future__ import annotations

import math
from collections.abc import Callable, Iterator
from contextlib import AbstractContextManager, contextmanager, nullcontext
from typing import Any, cast

import torch
from torch import Tensor, nn
from torch.overrides import TorchFunctionMode
from torch.utils.checkpoint import checkpoint


def sinusoid(value: Tensor, width: int, cosines_first: bool = False) -> Tensor:
    """Sine and cosine features of `value` (...,) -> (..., width), in the dtype of `value`.

    The published networks mix two conventions: sines first with exponents i/(half-1) for λ and the U-Net's
    time, cosines first with exponents i/half for the DiT's noise level.
    """
    half = width // 2
    index = torch.arange(half, dtype=value.dtype, device=value.device)
    frequency = torch.exp(index * (-math.log(10000.0) / (half if cosines_first else half - 1)))
    angle = value[..., None] * frequency
    parts = (angle.cos(), angle.sin()) if cosines_first else (angle.sin(), angle.cos())
    return torch.cat(parts, dim=-1)


def precise(dtype: torch.dtype) -> torch.dtype:
    """`dtype`, or float32 where half precision would blur angles such as 1000 λ."""
    return torch.promote_types(dtype, torch.float32)


def without_autocast(device: torch.device) -> AbstractContextManager[None]:
    """Disable autocast for the conditioning on λ and time, which is cheap and needs float32."""
    if torch.amp.is_autocast_available(device.type):
        return cast("AbstractContextManager[None]", torch.autocast(device.type, enabled=False))
    return nullcontext()  # the meta device, for estimates


class _NoFirstWeights(TorchFunctionMode):
    """Skips the initialisation of weights: torch would import its compiler to draw numbers without memory."""

    def __torch_function__(
        self, function: Any, types: Any, args: tuple[Any, ...] = (), kwargs: dict[str, Any] | None = None
    ) -> Any:
        given = kwargs or {}
        if getattr(function, "__module__", "") == nn.init.__name__:
            return given["tensor"] if "tensor" in given else args[0]
        return function(*args, **given)


@contextmanager
def shapes_only() -> Iterator[None]:
    """Modules that are built inside have shapes on the meta device and no memory."""
    with torch.device("meta"), _NoFirstWeights():
        yield


def allow_tf32() -> None:
    """Let fp32 matrix products and convolutions use TF32 on CUDA, which is several times faster.

    Their inputs are rounded to 10 bits. `NVIDIA_TF32_OVERRIDE=0` in the environment forbids it.
    """
    # not set_float32_matmul_precision, which would round products of some CPUs too
    torch.backends.cuda.matmul.allow_tf32 = True
    torch.backends.cudnn.allow_tf32 = True


def checkpointed(enabled: bool, function: Callable[..., Tensor], *inputs: Any) -> Tensor:
    """Call `function`; if `enabled`, gradients recompute its activations instead of keeping them."""
    if enabled and torch.is_grad_enabled():
        return cast("Tensor", checkpoint(function, *inputs, use_reentrant=False))
    return function(*inputs)


def padded(x: Tensor, size: int) -> Tensor:
    """`x` (n, ...) with its last row repeated until it has `size` rows."""
    missing = size - len(x)
    return x if missing <= 0 else torch.cat((x, x[-1:].expand(missing, *x.shape[1:])))


def tiled(function: Callable[..., Tensor], size: int, *inputs: Tensor | None) -> Tensor:
    """Call `function` on `size` rows of every input at a time; the last call is padded. None inputs stay None.

    A matrix product may sum in another order for another number of rows. A fixed number keeps the bits of a row
    independent of the batch.
    """
    rows = next(len(x) for x in inputs if x is not None)
    parts = []
    for start in range(0, rows, size):
        part = [None if x is None else padded(x[start : start + size], size) for x in inputs]
        parts.append(function(*part)[: rows - start])
    return parts[0] if len(parts) == 1 else torch.cat(parts)


def reset_linear(layer: nn.Linear | nn.Conv1d, std: float | None, generator: torch.Generator | None) -> None:
    """Torch's own initialisation, or with `std` a normal weight and zero bias.

    The numbers are drawn on the CPU and copied, so that one seed gives one student on any device.
    """
    assert layer.bias is not None
    if layer.weight.is_meta:
        return
    weight, bias = torch.empty(layer.weight.shape), torch.zeros(layer.bias.shape)
    if std is None:
        bound = 1.0 / math.sqrt(layer.weight[0].numel())
        weight.uniform_(-bound, bound, generator=generator)
        bias.uniform_(-bound, bound, generator=generator)
    else:
        weight.normal_(0.0, std, generator=generator) if std > 0 else weight.zero_()
    with torch.no_grad():
        layer.weight.copy_(weight)
        layer.bias.copy_(bias)
