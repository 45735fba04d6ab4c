"""The average of weights against its definition."""

from __future__ import annotations

import torch
from torch import nn

from di4c_cli.training.ema import Ema


def test_ema_starts_at_the_loaded_weights_and_follows_the_formula() -> None:
    module = nn.Linear(3, 2).double()
    ema, expected = Ema(module, 0.3), module.weight.detach().clone()
    assert torch.equal(ema.mean["weight"], expected)
    for update in range(1, 6):
        with torch.no_grad():
            module.weight.add_(torch.randn(2, 3, dtype=torch.float64))
        ema.update(module)
        keep = min(0.3, (1 + update) / (10 + update))
        expected = keep * expected + (1 - keep) * module.weight.detach()
    torch.testing.assert_close(ema.mean["weight"], expected, rtol=0, atol=1e-12)


def test_ema_averages_half_precision_weights_in_float32() -> None:
    module = nn.Linear(3, 2).bfloat16()
    ema = Ema(module, 0.9999)
    assert ema.mean["weight"].dtype is torch.float32
    with torch.no_grad():
        module.weight.fill_(1.0)
    for _ in range(3):
        ema.update(module)
    assert not torch.equal(ema.mean["weight"], ema.mean["weight"].bfloat16().float())


def test_ema_without_decay_equals_the_live_weights() -> None:
    module = nn.Linear(3, 2)
    ema = Ema(module, 0.0)
    with torch.no_grad():
        module.weight.mul_(1.7)
    ema.update(module)
    assert torch.equal(ema.tensors()["weight"], module.weight)


def test_ema_loads_saved_averages() -> None:
    first, second = Ema(nn.Linear(3, 2), 0.9), Ema(nn.Linear(3, 2), 0.9)
    second.load(first.tensors(), 17)
    assert second.updates == 17
    assert torch.equal(second.mean["bias"], first.mean["bias"])
