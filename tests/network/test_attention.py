"""Attention in half precision on the CPU: the plain products against the exact result in float64."""

from __future__ import annotations

import pytest
import torch
import torch.nn.functional as F
from torch import Tensor

from di4c_cli.network import attention as module
from di4c_cli.network.attention import attention


def inputs(dtype: torch.dtype) -> list[Tensor]:
    generator = torch.Generator().manual_seed(0)
    return [torch.randn(2, 3, 5, 8, generator=generator).to(dtype).requires_grad_() for _ in range(3)]


def gradients(x: list[Tensor], out: Tensor) -> list[Tensor]:
    return list(torch.autograd.grad((out * torch.arange(out.numel()).view(out.shape) / out.numel()).sum(), x))


@pytest.mark.parametrize("dtype", [torch.bfloat16, torch.float16])
def test_half_precision_has_the_exact_values_and_gradients(dtype: torch.dtype) -> None:
    x = inputs(dtype)
    exact = [one.detach().double().requires_grad_() for one in x]
    own, wanted = attention(*x), F.scaled_dot_product_attention(*exact)
    assert own.dtype == dtype
    for one, two in zip([own, *gradients(x, own)], [wanted, *gradients(exact, wanted)], strict=True):
        torch.testing.assert_close(one.double(), two, atol=0.02, rtol=0.02)


def test_the_fused_kernel_serves_all_other_cases(monkeypatch: pytest.MonkeyPatch) -> None:
    calls = []
    monkeypatch.setattr(F, "scaled_dot_product_attention", lambda q, k, v, dropout_p, **_: calls.append(dropout_p) or q)
    half = inputs(torch.bfloat16)
    attention(*half)
    assert not calls
    attention(*inputs(torch.float32))
    attention(*half, dropout=0.1)
    with torch.no_grad():
        attention(*half)
    monkeypatch.setattr(module, "MAX_PLAIN_LENGTH", 4)
    attention(*half)
    assert calls == [0.0, 0.1, 0.0, 0.0]
