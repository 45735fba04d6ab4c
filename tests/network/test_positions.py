"""Hidden states at chosen positions are those of the whole body."""

from __future__ import annotations

from typing import Any

import pytest
import torch

from di4c_cli.network import build

SIZES: dict[str, dict[str, Any]] = {
    "dit": {"width": 32, "depth": 2, "heads": 4, "cond_dim": 16},
    "dit, timed": {"width": 32, "depth": 1, "heads": 4, "cond_dim": 16, "time_conditioning": True},
    "maskgit": {"width": 32, "depth": 2, "heads": 4, "mlp": 48, "labels": 3},
}
LATENTS: list[dict[str, Any] | None] = [
    None,
    {"inject": "token"},
    {"inject": "film"},
    {"inject": "film", "dim": 3},
    {"inject": "field", "dim": 3},
    {"inject": "local", "dim": 2},
]


@pytest.mark.parametrize("latent", LATENTS)
@pytest.mark.parametrize("kind", SIZES)
def test_body_at_positions_equals_rows_of_the_body(kind: str, latent: dict[str, Any] | None) -> None:
    torch.manual_seed(0)
    settings = {"type": kind.split(",")[0], "symbols": 11, "length": 13, **SIZES[kind], "latent": latent}
    net = build(settings).eval().double().requires_grad_(False)
    for parameter in net.parameters():
        parameter.normal_(0, 0.3)
    x, t = torch.randint(0, 12, (1, 13)), torch.tensor([0.6], dtype=torch.float64)
    label = torch.tensor([2]) if "labels" in settings else None
    dim = 0 if latent is None else latent.get("dim", 1) * (13 if latent["inject"] == "local" else 1)
    lam = None if dim == 0 else torch.rand((1,) if dim == 1 else (1, dim), dtype=torch.float64)
    d = torch.tensor([4, 0, 12, 4])
    whole = net.body(x, t, label, lam)
    torch.testing.assert_close(net.body(x, t, label, lam, d)[0], whole[0, d], atol=1e-12, rtol=1e-10)
