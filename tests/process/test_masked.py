"""Masked diffusion against enumeration and its own definition."""

from __future__ import annotations

import itertools

import pytest
import torch

from di4c_cli.draw import JointDraw
from di4c_cli.errors import UserError
from di4c_cli.noise import Noise
from di4c_cli.process import SCHEDULES, Masked, build


@pytest.mark.parametrize("schedule", SCHEDULES)
def test_schedule_runs_from_zero_to_one(schedule: str) -> None:
    share = Masked(3, schedule).mask_share(torch.linspace(0, 1, 101, dtype=torch.float64))
    assert share[0] == pytest.approx(0, abs=1e-12) and share[-1] == pytest.approx(1, abs=1e-12)
    assert bool((share.diff() > 0).all())


@pytest.mark.parametrize("schedule", SCHEDULES)
def test_transitions_compose(schedule: str) -> None:
    """Chapman-Kolmogorov: q_{t|0} = q_{s|0} q_{t|s}, and rows are distributions."""
    process = Masked(3, schedule)
    zero, s, t = torch.zeros(1).double(), torch.tensor([0.3]).double(), torch.tensor([0.8]).double()
    whole = process.transition(zero, t)
    torch.testing.assert_close(process.transition(zero, s) @ process.transition(s, t), whole, atol=1e-14, rtol=0)
    torch.testing.assert_close(whole.sum(-1), torch.ones(1, 4).double())
    assert whole[0, 0, 3] == pytest.approx(float(process.mask_share(t)))


@pytest.mark.parametrize("schedule", SCHEDULES)
def test_posterior_is_bayes(schedule: str) -> None:
    """eq. deduce-analytical by brute force over x0, for every x_t of one position."""
    process = Masked(3, schedule)
    s, t = torch.tensor([0.3]).double(), torch.tensor([0.8]).double()
    q_s0, q_ts, q_t0 = (process.transition(a, b)[0] for a, b in ((s * 0, s), (s, t), (s * 0, t)))
    p0 = torch.tensor([0.2, 0.5, 0.3], dtype=torch.float64)
    for x_t in range(4):
        belief = p0 if x_t == 3 else torch.eye(3).double()[x_t]
        expected = torch.zeros(4).double()
        for x0, x_s in itertools.product(range(3), range(4)):
            if q_t0[x0, x_t] > 0:
                expected[x_s] += belief[x0] * q_s0[x0, x_s] * q_ts[x_s, x_t] / q_t0[x0, x_t]
        got = process.posterior(belief.view(1, 1, 3), torch.tensor([[x_t]]), t, s)
        torch.testing.assert_close(got[0, 0], expected, atol=1e-13, rtol=0)


def test_step_follows_the_posterior() -> None:
    """40 000 draws of two positions against the exact law, total variation below 0.01 (about 5 sigma)."""
    process, n = Masked(2), 40_000
    p = torch.tensor([[0.7, 0.3], [0.1, 0.9]]).double()
    x_t = torch.tensor([[2, 2]]).expand(n, 2)
    t, s = torch.full((n,), 0.9).double(), torch.full((n,), 0.4).double()
    noise = Noise(3, range(n))
    x_s = process.step(lambda b, d: p[d].log(), x_t, t, s, noise.uniform("step", 2, 2))
    exact = process.posterior(p[None], x_t[:1], t[:1], s[:1])[0]
    joint = exact[0][:, None] * exact[1][None, :]
    seen = torch.zeros(3, 3).double()
    seen.index_put_((x_s[:, 0], x_s[:, 1]), torch.ones(n).double(), accumulate=True)
    assert 0.5 * (seen / n - joint).abs().sum() < 0.01


def test_step_asks_only_for_revealed_rows_and_keeps_known_ones() -> None:
    process = Masked(5)
    x_t = torch.tensor([[5, 2, 5, 5], [1, 5, 0, 5]])
    asked: list[tuple[int, int]] = []

    def log_probs(b: torch.Tensor, d: torch.Tensor) -> torch.Tensor:
        asked.extend(zip(b.tolist(), d.tolist(), strict=True))
        return torch.zeros(len(b), 5)

    half = torch.full((2,), 0.5).double()
    x_s = process.step(log_probs, x_t, torch.ones(2), half, Noise(0, [0, 1]).uniform("u", 2, 4, 2))
    assert x_s.shape == (2, 2, 4)
    changed = (x_s != x_t[:, None]).any(1)
    assert set(asked) == set(zip(*(i.tolist() for i in changed.nonzero(as_tuple=True)), strict=True))
    assert bool((x_s[0, :, 1] == 2).all()) and bool((x_s[1, :, 0] == 1).all())


@pytest.mark.parametrize("many", [(), (1,), (2,), (3, 2)], ids=str)
def test_step_with_many_draws_equals_single_draws(many: tuple[int, ...]) -> None:
    process, x_t = Masked(5), torch.tensor([[5, 2, 5, 5], [1, 5, 0, 5]])
    law = torch.randn(2, 4, 5, generator=torch.Generator().manual_seed(0)).log_softmax(-1)
    t, s = torch.tensor([0.9, 0.7]).double(), torch.tensor([0.2, 0.1]).double()
    uniform = Noise(2, [0, 1]).uniform("u", *many, 4, 2)
    x_s = process.step(lambda b, d: law[b, d], x_t, t, s, uniform)
    assert x_s.shape == (2, *many, 4)
    for j, own in enumerate(uniform.reshape(2, -1, 4, 2).unbind(1)):
        alone = process.step(lambda b, d: law[b, d], x_t, t, s, own)
        assert torch.equal(x_s.reshape(2, -1, 4)[:, j], alone)


def test_mask_share_is_computed_in_64_bits() -> None:
    """A float32 time means its own value, not a share rounded to float32."""
    t = torch.tensor([0.1, 0.7])
    share = Masked(3, "square").mask_share(t)
    assert share.tolist() == pytest.approx([1 - (1 - value) ** 2 for value in t.tolist()], rel=1e-14)


def test_step_to_zero_fills_every_position() -> None:
    process = Masked(4)
    x = process.prior(torch.zeros(6, 9))
    ones = torch.ones(6)
    out = process.step(lambda b, d: torch.zeros(len(b), 4), x, ones, ones * 0, Noise(1, range(6)).uniform("u", 9, 2))
    assert int(out.max()) < 4


def test_corrupt_at_both_ends() -> None:
    process, x0 = Masked(4), torch.randint(0, 4, (50, 8))
    u = Noise(0, range(50)).uniform("u", 8)
    assert torch.equal(process.corrupt(x0, torch.zeros(50), u), x0)
    assert bool((process.corrupt(x0, torch.ones(50), u) == 4).all())


def test_build_rejects_unknown_names() -> None:
    with pytest.raises(UserError, match="schedule"):
        Masked(3, "cubic")
    with pytest.raises(UserError, match="process type"):
        build({"type": "maskd"})
    with pytest.raises(TypeError, match="scheduel"):
        build({"type": "masked", "symbols": 3, "scheduel": "linear"})


class FirstState(JointDraw):
    """Records its log-weights and draws the mask where `stay` is the larger one, else symbol 1."""

    def states(self, b: torch.Tensor, d: torch.Tensor, reveal: torch.Tensor, stay: torch.Tensor) -> torch.Tensor:
        self.asked = list(zip(b.tolist(), d.tolist()))
        self.weights = torch.stack((reveal.exp(), stay.exp()), 1)
        return torch.where(stay > reveal, 3, 1)


def test_step_gives_a_joint_draw_the_weights_of_symbols_and_mask() -> None:
    process, draw = Masked(3), FirstState(lambda b, d: torch.zeros(len(b), 3))
    t, s = torch.tensor([1.0, 0.5]).double(), torch.tensor([0.75, 0.125]).double()
    x_s = process.step(draw, torch.tensor([[3, 0], [3, 3]]), t, s, torch.zeros(2, 2, 2))
    assert draw.asked == [(0, 0), (1, 0), (1, 1)] and x_s.tolist() == [[3, 0], [1, 1]]
    torch.testing.assert_close(draw.weights, torch.tensor([[0.25, 0.75], *[[0.375, 0.125]] * 2]).double())
