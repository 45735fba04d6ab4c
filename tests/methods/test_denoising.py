"""The pretraining loss: plain cross-entropy in value and gradient, even times, no draws that depend on the batch."""

from __future__ import annotations

import math

import torch

from di4c_cli.build import build_denoiser
from di4c_cli.config import ModelConfig
from di4c_cli.data.stream import Batch
from di4c_cli.denoiser import Denoiser
from di4c_cli.methods.config import TimeConfig
from di4c_cli.methods.denoising import Denoising
from di4c_cli.methods.denoising_config import DenoisingConfig
from di4c_cli.methods.times import even_time
from di4c_cli.noise import Noise
from tests.helpers.small_run import DIGITS


def small_denoiser() -> Denoiser:
    config = ModelConfig(
        kind="teacher", name="x", network=DIGITS, process={"type": "masked", "symbols": 8}, labels=10, codec={}
    )
    torch.manual_seed(0)
    return build_denoiser(config).double()


def digits(count: int) -> Batch:
    generator = torch.Generator().manual_seed(1)
    x0 = torch.randint(8, (count, 64), generator=generator)
    return Batch(list(range(count)), x0, torch.arange(count) % 10)


def test_denoising_is_the_mean_cross_entropy_of_unknown_positions() -> None:
    student, batch = small_denoiser(), digits(6)
    method, noise = Denoising(DenoisingConfig(), student), Noise(0, batch.index, "train/1")
    found = method.loss(batch, noise)
    found.total.backward()
    gradients = [p.grad.clone() for p in student.parameters() if p.grad is not None]
    student.zero_grad()
    t = even_time(TimeConfig(), noise)
    assert batch.x0 is not None
    x_t = student.process.corrupt(batch.x0, t, noise.uniform("corrupt", 64))
    log_p = student.predict(x_t, t, batch.label).dense().gather(2, batch.x0[..., None]).squeeze(2)
    unknown = student.process.unknown(x_t)
    expected = -(log_p * unknown).sum(1) / unknown.sum(1).clamp_min(1)
    expected.mean().backward()
    assert torch.allclose(found.total, expected.mean())
    assert torch.allclose(found.terms["denoising"], expected.detach())
    plain = [p.grad for p in student.parameters() if p.grad is not None]
    assert all(torch.allclose(a, b) for a, b in zip(gradients, plain, strict=True))


def test_held_out_loss_of_a_uniform_model_is_the_entropy() -> None:
    student, batch = small_denoiser(), digits(20)
    for parameter in student.parameters():
        torch.nn.init.zeros_(parameter)
    loss, counted = Denoising(DenoisingConfig(), student).held_out_loss(batch, Noise(0, batch.index, "held-out"))
    assert torch.allclose(loss[counted], torch.tensor(math.log(8), dtype=loss.dtype))
    assert (loss[~counted] == 0).all()


def test_even_time_is_spread_evenly_and_belongs_to_the_sample() -> None:
    t = even_time(TimeConfig(low=0.5), Noise(3, range(1000, 1100), "train/1"))
    bins = ((t - 0.5) * 2 * 20).long().bincount(minlength=20)
    assert t.min() >= 0.5 and t.max() < 1
    assert bins.min() >= 4 and bins.max() <= 6  # 5 are expected; independent draws miss this nearly always
    part = even_time(TimeConfig(low=0.5), Noise(3, [1007, 1003], "train/1"))
    assert torch.equal(part, t[[7, 3]])
    assert not torch.equal(t, even_time(TimeConfig(low=0.5), Noise(4, range(1000, 1100), "train/1")))
