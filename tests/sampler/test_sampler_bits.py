"""Same seed, same samples, whatever the batch: bitwise, on every network and for every sampler."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest
import torch

from di4c_cli import network
from di4c_cli.denoiser import Denoiser
from di4c_cli.latent.prior import LatentPrior
from di4c_cli.noise import Noise
from di4c_cli.process import Gaussian, Masked
from di4c_cli.sampler.loop import sample_batch
from di4c_cli.sampler.plan import SamplingPlan
from di4c_cli.sampler.tiles import chunks, predict

COUNT = 16


def dit() -> Denoiser:
    sizes = {"length": 20, "width": 48, "depth": 2, "heads": 4, "cond_dim": 16}
    net = network.build({"type": "dit", "symbols": 211, **sizes, "latent": {"dim": 1}})
    return Denoiser(net, Masked(211), LatentPrior())


def maskgit() -> Denoiser:
    sizes = {"length": 16, "width": 48, "depth": 2, "heads": 4, "mlp": 64, "labels": 7}
    net = network.build({"type": "maskgit", "symbols": 40, **sizes, "latent": {"dim": 1}})
    return Denoiser(net, Masked(40, "arccos"), LatentPrior(), labels=7)


def unet() -> Denoiser:
    sizes = {"channels": 16, "multipliers": [1, 2], "blocks": 1, "attention": [1], "time_dim": 16}
    net = network.build({"type": "unet", "symbols": 24, "shape": [3, 8, 8], **sizes, "latent": {"dim": 1}})
    return Denoiser(net, Gaussian(24, 4.0, 40.0), LatentPrior())


def built(make: Callable[[], Denoiser]) -> Denoiser:
    """Random weights large enough that every input matters."""
    torch.manual_seed(1)
    model = make().eval().requires_grad_(False)
    for parameter in model.parameters():
        parameter.normal_(0, 0.15)
    return model


def field() -> Denoiser:
    sizes = {"length": 16, "width": 48, "depth": 2, "heads": 4, "mlp": 64, "labels": 7}
    latent = {"dim": 2, "inject": "local", "distribution": "normal", "prior": "learned", "prior_width": 8}
    net = network.build({"type": "maskgit", "symbols": 40, **sizes, "latent": latent})
    return Denoiser(net, Masked(40, "arccos"), LatentPrior(2, "normal", 16), labels=7)


WAYS: list[tuple[Callable[[], Denoiser], dict[str, Any]]] = [
    (dit, {"steps": 5}),
    (dit, {"steps": 3, "dtype": "float32"}),
    (dit, {"steps": 3, "temperature": 0.8, "top_p": 0.9}),
    (maskgit, {"steps": 4, "sampler": "confidence", "guidance": 3.0}),
    (field, {"steps": 3, "guidance": 2.0}),
    (unet, {"steps": 3, "grid": "pixels", "last": "argmax"}),
    (unet, {"steps": 3, "grid": "pixels", "sampler": "tau-leaping", "corrector": 1}),
]


@pytest.mark.slow
@pytest.mark.parametrize("tile", [16, 1, 5])
@pytest.mark.parametrize(("make", "way"), WAYS)
def test_sampling_loop_does_not_depend_on_the_batch(
    make: Callable[[], Denoiser], way: dict[str, Any], tile: int
) -> None:
    model, plan = built(make), SamplingPlan(tile=tile, **way)

    def draw(numbers: list[int]) -> torch.Tensor:
        label = torch.tensor(numbers) % 7 if plan.guidance else None
        return sample_batch(model, plan, Noise(2, numbers), label)

    whole = draw(list(range(COUNT)))
    for size in (1, 3, 7):
        parts = [draw(list(range(i, min(i + size, COUNT)))) for i in range(0, COUNT, size)]
        assert torch.equal(torch.cat(parts), whole)
    shuffled = [9, 2, 15, 0, 4]
    assert torch.equal(draw(shuffled), whole[shuffled])


@pytest.mark.parametrize("make", [dit, maskgit, unet])
@pytest.mark.parametrize("tile", [1, 4, 16])
def test_predict_gives_the_same_bits_in_any_batch(make: Callable[[], Denoiser], tile: int) -> None:
    model = built(make)
    generator = torch.Generator().manual_seed(3)
    x = torch.randint(0, model.process.states, (COUNT, model.length), generator=generator)
    t, lam = torch.rand(COUNT, generator=generator), torch.rand(COUNT, generator=generator)
    whole = predict(model, x, t, None, lam, tile, 32)
    b, d = (a.reshape(-1) for a in torch.meshgrid(torch.arange(COUNT), torch.arange(9), indexing="ij"))
    logits = whole.logits(b, d)
    for size in (1, 3, 7):
        for start in range(0, COUNT, size):
            part = slice(start, min(start + size, COUNT))
            own = predict(model, x[part], t[part], None, lam[part], tile, 32)
            assert torch.equal(own.hidden, whole.hidden[part])
            mine = (b >= part.start) & (b < part.stop)
            assert torch.equal(own.logits(b[mine] - start, d[mine]), logits[mine])


def test_chunks_of_a_sample_do_not_depend_on_its_neighbours() -> None:
    b = torch.tensor([0] * 5 + [2] * 3 + [3] * 9)
    cut = [(piece.start, piece.stop) for piece in chunks(b, 4, alone=True)]
    assert cut == [(0, 4), (4, 5), (5, 8), (8, 12), (12, 16), (16, 17)]
    together = [(piece.start, piece.stop) for piece in chunks(b, 8, alone=False)]
    assert together == [(0, 8), (8, 16), (16, 17)]
    assert list(chunks(b[:0], 8, alone=True)) == []


def test_analytical_step_that_reveals_nothing_calls_no_network() -> None:
    """With more steps than positions most steps change nothing: they do not call the network."""
    model = built(dit)
    calls: list[int] = []
    body = model.network.body
    model.network.body = lambda x, *rest: calls.append(len(x)) or body(x, *rest)  # type: ignore[method-assign]
    sample_batch(model, SamplingPlan(steps=200, tile=2), Noise(0, [0]), given=torch.full((1, 6), -1))
    assert 1 <= len(calls) <= 6
