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


def test_uniform_has_these_bits_for_ever() -> None:
    """A seed names its samples in every later version and on every device."""
    first = [[0.3820565441758451, 0.23212217389976364], [0.12745186347241344, 0.05756800427819886]]
    assert Noise(0, [0, 1]).uniform("t", 2).tolist() == first


def test_uniform_is_even_over_pairs_of_elements_and_of_samples() -> None:
    """Chi-square of 16 x 16 cells at lags in both directions: eight tests, 5.5 sigma each (error rate 1e-6 in all)."""
    cells = (Noise(1, range(1000)).uniform("x", 400) * 16).long()
    for lag in (1, 7, 64, 256):
        for first, second in ((cells[:, :-lag], cells[:, lag:]), (cells[:-lag], cells[lag:])):
            found = torch.bincount((16 * first + second).flatten(), minlength=256).double()
            even = found.sum() / 256
            assert float(((found - even) ** 2 / even).sum()) < 255 + 5.5 * (2 * 255) ** 0.5


def test_uniform_of_many_numbers_is_drawn_in_pieces_with_the_same_bits() -> None:
    alone, together = Noise(2, [5]).uniform("x", 40_000), Noise(2, range(3, 9)).uniform("x", 40_000)
    assert torch.equal(alone[0], together[2])


def test_normal_has_the_moments_of_the_normal_law() -> None:
    """Mean, variance and fourth moment of a million numbers, each within 5 sigma."""
    z = Noise(3, range(1000)).normal("z", 1000)
    assert abs(float(z.mean())) < 5e-3
    assert abs(float(z.square().mean()) - 1) < 5 * 2**0.5 * 1e-3
    assert abs(float((z**4).mean()) - 3) < 5 * 96**0.5 * 1e-3


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
