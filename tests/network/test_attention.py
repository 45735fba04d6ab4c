"""Attention: bfloat16 on the CPU against the exact result, padding and shared heads, and when torch's kernel serves."""

from __future__ import annotations

import pytest
import torch
import torch.nn.functional as F
from torch import Tensor

from di4c_cli.network import attention as module
from di4c_cli.network.attention import attention


def inputs(dtype: torch.dtype, length: int = 5, kv_heads: int = 4) -> list[Tensor]:
    generator = torch.Generator().manual_seed(0)
    heads = (4, kv_heads, kv_heads)
    return [torch.randn(2, n, length, 8, generator=generator).to(dtype).requires_grad_() for n in heads]


def gradients(x: list[Tensor], out: Tensor) -> list[Tensor]:
    return list(torch.autograd.grad((out * torch.arange(out.numel()).view(out.shape) / out.numel()).sum(), x))


@pytest.mark.parametrize(("scale", "error"), [(1.0, 0.01), (6.0, 0.03)])
def test_bfloat16_has_the_exact_values_and_gradients(scale: float, error: float) -> None:
    q, k, v = inputs(torch.bfloat16, 32)
    x = [(scale * q).detach().requires_grad_(), k, v]
    exact = [one.detach().double().requires_grad_() for one in x]
    own, wanted = attention(*x), F.scaled_dot_product_attention(*exact)
    assert own.dtype == torch.bfloat16
    for one, two in zip([own, *gradients(x, own)], [wanted, *gradients(exact, wanted)], strict=True):
        assert float((one.double() - two).norm() / two.norm()) < error


@pytest.mark.parametrize("dtype", [torch.bfloat16, torch.float32])
def test_padding_and_shared_heads_have_their_meaning(dtype: torch.dtype) -> None:
    q, k, v = inputs(dtype, 5, 2)
    seen = torch.tensor([[1, 1, 1, 1, 1], [1, 1, 1, 0, 0]], dtype=torch.bool)[:, None, None]
    out = attention(q, k, v, seen=seen)
    scores = q.double() @ k.double().repeat_interleave(2, 1).transpose(-1, -2) / 8**0.5
    wanted = scores.masked_fill(~seen, -torch.inf).softmax(-1) @ v.double().repeat_interleave(2, 1)
    torch.testing.assert_close(out.double(), wanted, atol=0.02, rtol=0.02)


def test_the_fused_kernel_serves_all_other_cases(monkeypatch: pytest.MonkeyPatch) -> None:
    calls = []
    monkeypatch.setattr(F, "scaled_dot_product_attention", lambda q, k, v, **flags: calls.append(flags) or q)
    half = inputs(torch.bfloat16)
    attention(*half)
    assert not calls
    seen = torch.ones(2, 1, 1, 5, dtype=torch.bool)
    for call in (
        lambda: attention(*inputs(torch.float32)),
        lambda: attention(*inputs(torch.float16)),
        lambda: attention(*half, dropout=0.1),
        lambda: attention(*half, seen=seen),
        lambda: attention(*inputs(torch.bfloat16, kv_heads=2)),
        lambda: attention(*(one.detach() for one in half)),
    ):
        call()
    with torch.no_grad():
        attention(*half)
    monkeypatch.setattr(module, "MAX_PLAIN_LENGTH", 4)
    attention(*half)
    assert len(calls) == 8 and calls[2]["dropout_p"] == 0.1 and calls[3]["attn_mask"] is seen and calls[4]["enable_gqa"]
