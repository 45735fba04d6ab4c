"""The pixel U-Net: its output distribution against the plain formula, λ and label conditioning, gradients, shapes."""

from __future__ import annotations

from typing import Any

import pytest
import torch
from torch import Tensor

from di4c_cli.errors import UserError
from di4c_cli.network import build
from di4c_cli.network.unet import UNet
from di4c_cli.network.unet_blocks import truncated_logistic

SIZES: dict[str, Any] = {
    "symbols": 10,
    "shape": (2, 4, 8),
    "channels": 8,
    "multipliers": [1, 2],
    "blocks": 1,
    "attention": 1,
    "time_dim": 8,
}


def scrambled(seed: int = 0, **changes: Any) -> UNet:
    """A U-Net without the silent layers of a fresh one, so that every path shows in the output."""
    net = UNet(**(SIZES | changes)).double().eval()
    generator = torch.Generator().manual_seed(seed)
    with torch.no_grad():
        for parameter in net.parameters():
            noise = torch.randn(parameter.shape, generator=generator, dtype=torch.float64)
            parameter.copy_(0.5 * parameter + 0.2 * noise)
    return net


def batch(net: UNet, size: int = 3) -> tuple[Tensor, Tensor]:
    generator = torch.Generator().manual_seed(1)
    x = torch.randint(net.symbols, (size, net.length), generator=generator)
    return x, torch.rand(size, generator=generator, dtype=torch.float64)


def plain_logits(mu: Tensor, log_scale: Tensor, symbols: int) -> Tensor:
    """The published formula, word for word, in float64."""
    width = 2.0 / symbols
    centre = torch.linspace(-1 + width / 2, 1 - width / 2, symbols, dtype=torch.float64)
    steep = torch.exp(2.0 - log_scale.double())[:, None]
    a = torch.nn.functional.logsigmoid((centre + width / 2 - mu.double()[:, None]) * steep)
    b = torch.nn.functional.logsigmoid((centre - width / 2 - mu.double()[:, None]) * steep)
    return a + torch.log(1.0 - torch.exp(b - a) + 1e-6)


@pytest.mark.parametrize("symbols", [2, 24, 256])
@pytest.mark.parametrize("dtype, tolerance", [(torch.float64, 1e-9), (torch.float32, 2e-5)])
def test_unet_head_is_the_published_formula(symbols: int, dtype: torch.dtype, tolerance: float) -> None:
    generator = torch.Generator().manual_seed(0)
    mu = torch.rand(200, generator=generator, dtype=torch.float64) * 2 - 1
    log_scale = torch.randn(200, generator=generator, dtype=torch.float64) * 2
    expected = plain_logits(mu, log_scale, symbols).softmax(-1)
    found = truncated_logistic(mu.to(dtype), log_scale.to(dtype), symbols).softmax(-1)
    torch.testing.assert_close(found.double(), expected, atol=tolerance, rtol=0)


@pytest.mark.parametrize("dtype", [torch.float64, torch.float32, torch.bfloat16])
def test_unet_head_and_its_gradient_stay_finite(dtype: torch.dtype) -> None:
    grid = torch.cartesian_prod(
        torch.tensor([-1.0, -0.999, -0.5, 0.0, 1 / 256, 0.7, 1.0]),
        torch.tensor([-1e4, -200.0, -90.0, -40.0, -18.0, -5.0, 0.0, 5.0, 40.0, 90.0, 200.0, 1e4]),
    ).to(dtype)
    h = grid.clone().requires_grad_()
    net = UNet(**(SIZES | {"symbols": 256}))
    logits = net.head(h, torch.zeros(len(h), dtype=torch.long))
    log_p = logits.log_softmax(-1)
    (log_p.sum() + log_p.exp()[:, ::3].sum()).backward()
    assert h.grad is not None
    assert logits.dtype in (torch.float32, torch.float64)
    assert torch.isfinite(log_p).all() and torch.isfinite(h.grad).all()


def test_unet_head_picks_the_bin_of_the_mean_when_sharp() -> None:
    centre = torch.linspace(-1 + 1 / 24, 1 - 1 / 24, 24)
    assert torch.equal(truncated_logistic(centre, torch.full((24,), -1e3), 24).argmax(-1), torch.arange(24))


def test_unet_body_is_net_out_in_channel_row_column_order() -> None:
    net = scrambled()
    x, t = batch(net)
    out, body = net.net_out(x, t), net.body(x, t)
    assert body.shape == (3, net.length, net.width)
    c, row, column = 1, 2, 5
    d = (c * 4 + row) * 8 + column
    assert torch.equal(body[:, d], torch.stack([out[:, c, row, column], out[:, 2 + c, row, column]], dim=1))
    assert out[:, :2].abs().max() < 1  # means are a tanh


def test_unet_centres_on_its_input_when_fresh() -> None:
    net = UNet(**SIZES)
    x = torch.arange(net.length).remainder(net.symbols)[None]
    mu, log_scale = net.body(x, torch.tensor([0.5])).unbind(-1)
    torch.testing.assert_close(mu, torch.tanh(2 * x / (net.symbols - 1) - 1))
    assert log_scale.abs().max() == 0


def test_unet_student_starts_as_its_teacher() -> None:
    teacher = scrambled()
    student = UNet(**SIZES, latent={"dim": 1}).double().eval()
    report = student.load_state_dict(teacher.state_dict(), strict=False)
    assert not report.unexpected_keys
    x, t = batch(teacher)
    lam = torch.tensor([0.1, 0.5, 0.9], dtype=torch.float64)
    assert torch.equal(student.body(x, t, None, lam), teacher.body(x, t))
    student.init_latent(0.5, torch.Generator().manual_seed(0))
    assert (student.body(x, t, None, lam) - teacher.body(x, t)).abs().max() > 1e-3


def test_unet_latent_initialisation() -> None:
    first, second = (UNet(**SIZES, latent={"dim": 1}) for _ in range(2))
    for net in (first, second):
        net.init_latent(0.3, torch.Generator().manual_seed(7))
    latent_parts = [name for name in first.state_dict() if "lemb" in name or "mix" in name or "dense1" in name]
    assert len(latent_parts) == 8 + 4 + 2 * 8  # two MLPs, two mixers, eight residual blocks
    for name in latent_parts:
        assert torch.equal(first.state_dict()[name], second.state_dict()[name])
    assert 0.25 < first.middle_modules[0].dense1.weight.std().item() < 0.35
    for name in latent_parts:
        assert first.state_dict()[name].any() == name.endswith("weight")  # biases start at zero (F.1.3)
    first.init_latent("zero")
    assert not first.middle_modules[0].dense1.weight.any()
    with pytest.raises(ValueError, match="random"):
        first.init_latent("random")
    with pytest.raises(ValueError, match="no λ weights"):
        UNet(**SIZES).init_latent()


@pytest.mark.parametrize("features, entries", [("sinusoid", 3 * 8), ("raw", 3), (None, 3 * 8)])
def test_unet_takes_a_vector_latent(features: str | None, entries: int) -> None:
    net = scrambled(latent={"dim": 3, "features": features, "distribution": "normal"})
    assert net.tlam_mix.in_features == entries + net.time_dim
    x, t = batch(net)
    lam = torch.randn(3, 3, dtype=torch.float64)
    base = net.body(x, t, None, lam)
    for component in range(3):
        moved = lam.clone()
        moved[1, component] += 0.3
        change = (net.body(x, t, None, moved) - base).abs().amax(dim=(1, 2))
        assert change[1] > 1e-4 and change[0] < 1e-12 and change[2] < 1e-12


def test_unet_rejects_a_latent_that_does_not_fit() -> None:
    student, teacher = scrambled(latent={"dim": 1}), scrambled()
    x, t = batch(teacher)
    with pytest.raises(ValueError, match="mixture"):
        student.body(x, t)
    with pytest.raises(ValueError, match="mixture"):
        teacher.body(x, t, None, t)
    assert torch.equal(student.body(x, t, None, t), student.body(x, t, None, t[:, None]))
    for inject in ("token", "local"):
        with pytest.raises(UserError, match="film"):
            UNet(**SIZES, latent={"inject": inject})


def test_unet_uses_labels() -> None:
    net = scrambled(labels=4)
    x, t = batch(net)
    without = net.body(x, t)
    mixed = net.body(x, t, torch.tensor([-1, 3, 0]))
    torch.testing.assert_close(mixed[0], without[0], rtol=0, atol=1e-12)
    assert (mixed[1] - without[1]).abs().max() > 1e-3
    assert "label_emb.weight" not in scrambled().state_dict()


def test_unet_checkpointing_changes_neither_output_nor_gradient() -> None:
    net = scrambled(latent={"dim": 1}, dropout=0.2).train()
    x, t = batch(net)
    results = []
    for net.checkpointing in (False, True):
        net.zero_grad()
        torch.manual_seed(3)  # dropout
        out = net.body(x, t, None, t)
        out.square().sum().backward()
        results.append([out.detach(), *(p.grad.clone() for p in net.parameters() if p.grad is not None)])
    assert len(results[0]) == 1 + len(list(net.parameters()))  # every parameter is reached
    for plain, recomputed in zip(*results):
        torch.testing.assert_close(plain, recomputed, rtol=0, atol=1e-12)


@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16])
def test_unet_low_precision_weights_keep_fine_means(dtype: torch.dtype) -> None:
    net = scrambled(latent={"dim": 1})
    x, t = batch(net)
    exact = net.body(x, t, None, t)
    found = net.to(dtype).body(x, t.float(), None, t.float())
    assert found.dtype == torch.float32
    assert (found.double() - exact).abs().max() < (1e-3 if dtype == torch.float32 else 0.5)


def test_unet_autocast_stays_close_and_finite() -> None:
    net = scrambled(latent={"dim": 1}).float()
    x, t = batch(net)
    exact = net.body(x, t.float(), None, t.float())
    with torch.autocast("cpu", torch.bfloat16):
        found = net.body(x, t.float(), None, t.float())
        logits = net.head(found.flatten(0, 1))
    assert found.dtype == logits.dtype == torch.float32 and torch.isfinite(logits).all()
    assert 0 < (found - exact).abs().max() < 0.5


def test_unet_is_built_by_its_type() -> None:
    changes: dict[str, Any] = {"labels": 2, "latent": {"dim": 2}, "dropout": 0.1, "attention": [0, 1]}
    net = scrambled(**changes)
    again = build({"type": "unet", **SIZES, **changes}).double().eval()
    again.load_state_dict(net.state_dict())
    x, t = batch(net)
    lam = torch.rand(3, 2, dtype=torch.float64)
    assert torch.equal(net.body(x, t, None, lam), again.body(x, t, None, lam))


def test_unet_sides_need_not_be_powers_of_two() -> None:
    net = UNet(256, (1, 28, 12), 8, [1, 1, 2], 1, 2, 8)
    x = torch.zeros(1, 28 * 12, dtype=torch.long)
    assert net.body(x, torch.tensor([0.3])).shape == (1, 28 * 12, 2)
    with pytest.raises(ValueError, match="multiples of 4"):
        UNet(256, (1, 28, 10), 8, [1, 1, 2], 1, 2, 8)
