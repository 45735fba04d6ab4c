"""Draws depend on the sample's number and the name, and on nothing else."""

from __future__ import annotations

import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from di4c_cli.draw import categorical
from di4c_cli.noise import Noise, sample_seeds


def test_noise_does_not_depend_on_the_batch_or_on_other_draws() -> None:
    whole = Noise(7, range(10)).uniform("a", 3)
    part = Noise(7, [4, 5])
    part.uniform("b", 5)
    assert torch.equal(part.uniform("a", 3), whole[4:6])


def test_noise_differs_by_name_stream_and_seed() -> None:
    base = Noise(1, range(4), "x")
    draws = [base.uniform("a", 8), base.uniform("b", 8), base.at("step", 1).uniform("a", 8)]
    draws += [Noise(2, range(4), "x").uniform("a", 8), Noise(1, range(4), "y").uniform("a", 8)]
    for i, first in enumerate(draws):
        for second in draws[i + 1 :]:
            assert not torch.equal(first, second)


def test_sample_seeds_of_one_key_never_collide() -> None:
    assert len(set(sample_seeds("0:sample:t", range(200_000)))) == 200_000


def test_uniform_is_uniform_across_samples() -> None:
    """The first number of 50 000 neighbouring samples: mean within 5 sigma, deciles even."""
    first = Noise(0, range(50_000)).uniform("t")
    assert abs(float(first.mean()) - 0.5) < 5 * 0.2887 / 50_000**0.5
    assert float((torch.histc(first, 10, 0, 1) / 5000 - 1).abs().max()) < 0.08


def test_gumbel_is_finite() -> None:
    assert bool(torch.isfinite(Noise(0, range(2000)).gumbel("g", 50)).all())


@settings(max_examples=60, deadline=None)
@given(st.lists(st.floats(-800, 800), min_size=1, max_size=12), st.floats(0, 1, exclude_max=True))
def test_categorical_never_draws_the_impossible(logits: list[float], u: float) -> None:
    log_p = torch.tensor([*logits, -torch.inf], dtype=torch.float64)
    index = int(categorical(log_p, torch.tensor(u, dtype=torch.float64)))
    assert 0 <= index < len(logits)
    assert float(torch.softmax(log_p, -1)[index]) > 0


def test_categorical_inverts_the_distribution_function() -> None:
    log_p = torch.tensor([0.25, 0.0, 0.5, 0.25]).log().expand(5, 4)
    u = torch.tensor([0.0, 0.2499, 0.25, 0.7501, 1 - 2**-53], dtype=torch.float64)
    assert categorical(log_p, u).tolist() == [0, 0, 2, 3, 3]
