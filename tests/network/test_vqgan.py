"""The VQGAN: exact nearest codes, the straight-through gradient, shapes and a short training."""

from __future__ import annotations

from typing import Any

import pytest
import torch

from di4c_cli.network.vqgan import VQGAN
from tools.make_task_assets import training_pass

SIZES: dict[str, Any] = {
    "channels": 32,
    "multipliers": [1, 1],
    "blocks": 1,
    "attention_resolutions": [4],
    "z_channels": 6,
    "embed_dim": 5,
    "codes": 11,
    "resolution": 8,
}


def made(**changes: Any) -> VQGAN:
    torch.manual_seed(0)
    model = VQGAN(**(SIZES | changes)).eval()
    torch.nn.init.normal_(model.quantize.embedding.weight, std=0.5)  # spread out: several codes occur
    return model


def images(count: int = 3, channels: int = 3, side: int = 8) -> torch.Tensor:
    return torch.rand(count, channels, side, side, generator=torch.Generator().manual_seed(1)) * 2 - 1


def test_vqgan_codes_are_the_nearest_rows() -> None:
    model = made()
    z = model.pre_quant(images())
    rows = z.permute(0, 2, 3, 1).reshape(3, 16, 1, 5)
    expected = (rows - model.quantize.embedding.weight).square().sum(-1).argmin(-1)
    vectors, codes = model.quantize(z)
    assert torch.equal(codes, expected) and torch.equal(codes, model.encode(images()))
    assert codes.unique().numel() > 1
    assert torch.equal(vectors[1, :, 2, 3], model.quantize.embedding.weight[codes[1, 2 * 4 + 3]])


def test_vqgan_training_pass_decodes_the_codes() -> None:
    model = made()
    reconstruction, loss, codes = training_pass(model, images())
    torch.testing.assert_close(reconstruction, model.decode(codes), atol=1e-5, rtol=0)
    z = model.pre_quant(images())
    gap = (model.quantize(z)[0] - z).square().mean()
    torch.testing.assert_close(loss, 1.25 * gap)


def test_vqgan_gradient_passes_straight_through() -> None:
    """The encoder feels the reconstruction as if there were no quantiser; the codebook does not feel it."""
    model = made()
    reconstruction, loss, codes = training_pass(model, images())
    reconstruction.square().sum().backward(retain_graph=True)
    assert model.quantize.embedding.weight.grad is None
    vectors = model.quantize.lookup(codes, model.grid).detach().requires_grad_()
    found = model.quant_conv.bias.grad.clone()
    model.decoder(model.post_quant_conv(vectors)).square().sum().backward()
    assert vectors.grad is not None
    torch.testing.assert_close(found, vectors.grad.sum(dim=(0, 2, 3)), rtol=1e-3, atol=1e-4)
    loss.backward()
    touched = model.quantize.embedding.weight.grad.abs().sum(dim=1) > 0
    assert torch.equal(touched.nonzero().flatten(), codes.unique())


@pytest.mark.parametrize("resolution, levels, grid", [(28, 3, 7), (8, 2, 4), (12, 1, 12)])
def test_vqgan_grid_follows_resolution_and_levels(resolution: int, levels: int, grid: int) -> None:
    model = made(resolution=resolution, multipliers=[1] * levels, in_channels=1, out_channels=1)
    codes = model.encode(images(2, 1, resolution))
    assert model.grid == (grid, grid) and codes.shape == (2, grid * grid) and codes.dtype == torch.long
    assert model.decode(codes).shape == (2, 1, resolution, resolution)


def test_vqgan_attends_only_at_its_resolutions() -> None:
    names = list(made().state_dict())
    assert "encoder.down.1.attn.0.q.weight" in names and "decoder.up.1.attn.1.q.weight" in names
    assert not [name for name in names if ".0.attn" in name]


def test_vqgan_rejects_impossible_sizes() -> None:
    with pytest.raises(ValueError, match="multiples of 32"):
        made(channels=48)
    with pytest.raises(ValueError, match="multiple of 4"):
        made(resolution=10, multipliers=[1, 1, 1])


def test_vqgan_state_dict_holds_the_whole_model() -> None:
    model = made(in_channels=1, out_channels=1)
    again = VQGAN(**(SIZES | {"in_channels": 1, "out_channels": 1}))
    again.load_state_dict(model.state_dict())
    codes = torch.arange(32).remainder(11).reshape(2, 16)
    assert torch.equal(model.decode(codes), again.decode(codes))


def test_vqgan_learns_to_reconstruct_in_a_short_training() -> None:
    model = made(in_channels=1, out_channels=1, attention_resolutions=[]).train()
    target = torch.where(torch.arange(8) < 4, -1.0, 1.0).expand(2, 1, 8, 8).clone()
    target[1] = target[0].transpose(1, 2)
    optimizer = torch.optim.Adam(model.parameters(), lr=2e-3)
    errors = []
    for _ in range(40):
        reconstruction, loss, _ = training_pass(model, target)
        error = (reconstruction - target).square().mean()
        optimizer.zero_grad()
        (error + loss).backward()
        optimizer.step()
        errors.append(error.item())
    assert errors[-1] < 0.1 * errors[0]
