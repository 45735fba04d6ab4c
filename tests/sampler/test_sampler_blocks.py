"""Blocks from left to right: their law by enumeration, their order, equal bits in any batch; forward passes counted."""

from __future__ import annotations

import re

import numpy as np
import pytest
import torch

from di4c_cli.denoiser import Denoiser
from di4c_cli.errors import UserError
from di4c_cli.noise import Noise
from di4c_cli.process import Masked, Uniform
from di4c_cli.sampler.config import HandoffConfig, SamplingConfig
from di4c_cli.sampler.loop import sample_batch, sample_many
from di4c_cli.sampler.plan import SamplingPlan
from tests.helpers.enumerable import DATA, LENGTH, PLACES, SYMBOLS, student, teacher
from tests.helpers.sampler_table import LEVEL, chi_square, frequencies, tabulated


@pytest.mark.parametrize("block", [1, 2])
def test_blocks_have_the_law_of_one_draw_after_the_other(block: int) -> None:
    """One step for each block: p(block 1 | masks) p(block 2 | block 1, masks) …, each with a λ of its own."""
    model, law = student(), np.zeros((SYMBOLS + 1) ** LENGTH)
    for x in DATA:
        weight = 1.0
        for first in range(0, LENGTH, block):
            seen = torch.where(torch.arange(LENGTH) < first, x, SYMBOLS)
            p = model.network.table[int((seen * PLACES).sum())].detach().softmax(-1)  # (λ, D, S)
            own = range(first, min(first + block, LENGTH))
            weight *= float(torch.stack([p[:, d, x[d]] for d in own]).prod(0).mean())
        law[int((x * PLACES).sum())] = weight
    plan = SamplingPlan(steps=-(-LENGTH // block), block=block, tile=0)
    x = sample_batch(model, plan, Noise(5, range(40_000)))
    assert law.sum() == pytest.approx(1)
    assert chi_square(frequencies(x, model.process), law) > LEVEL


@pytest.mark.parametrize("sampler", ["analytical", "confidence"])
def test_a_block_begins_when_the_one_before_it_is_full(sampler: str) -> None:
    """The free positions are counted without the given ones between them, in every sample for itself."""
    model = tabulated(Masked(3), 6, seed=2)
    given = torch.full((2, 6), -1)
    given[0, 1], given[1, 5] = 2, 1
    seen: list[torch.Tensor] = []
    plan = SamplingPlan(steps=6, block=2, sampler=sampler)
    x = sample_batch(
        model, plan, Noise(1, [3, 4]), given=given, on_step=lambda left, t, x: seen.append((x == 3).long())
    )
    blocks = [[[0, 2], [3, 4], [5]], [[0, 1], [2, 3], [4]]]
    for step, masked in enumerate(seen):
        for row, own in zip(masked, blocks):
            assert all(int(row[place]) == 0 for block in own[: (step + 1) // 2] for place in block)
            assert all(int(row[place]) == 1 for block in own[step // 2 + 1 :] for place in block)
    assert bool((x < 3).all()) and bool((x[given >= 0] == given[given >= 0]).all())


def test_one_block_is_no_block() -> None:
    model, given = tabulated(Masked(3), 5, seed=4), torch.tensor([-1, 1, -1, -1, -1])
    for sampler in ("analytical", "confidence"):
        plain, whole = (SamplingPlan(steps=3, sampler=sampler, block=block) for block in (None, 4))
        assert torch.equal(*(sample_many(model, plan, 7, given=given) for plan in (plain, whole)))


def test_samples_in_blocks_do_not_depend_on_the_batch() -> None:
    model, plan = student(), SamplingPlan(steps=6, block=1, tile=1)
    whole = sample_many(model, plan, 9, seed=3)
    assert torch.equal(sample_many(model, plan, 9, seed=3, batch_size=2), whole)
    assert torch.equal(sample_many(model, plan, 3, seed=3, numbers=[8, 0, 5]), whole[[8, 0, 5]])


class _TimeSeen(torch.nn.Module):
    """Notes the times that the network is called with."""

    length, width = 4, 2

    def __init__(self) -> None:
        super().__init__()
        self.weight = torch.nn.Parameter(torch.zeros(2))
        self.times: list[float] = []

    def body(self, x: torch.Tensor, t: torch.Tensor, *rest: object) -> torch.Tensor:
        self.times.append(round(float(t[0]), 4))
        return torch.zeros(*x.shape, 2)

    def head(self, h: torch.Tensor, d: torch.Tensor) -> torch.Tensor:
        return h


def test_network_gets_the_time_of_the_whole_sample() -> None:
    """Where later blocks are masked, the share of masks is larger than in the block alone."""
    network = _TimeSeen()
    sample_batch(Denoiser(network, Masked(2)), SamplingPlan(steps=4, block=2, sampler="confidence"), Noise(0, [0]))
    assert network.times == [1.0, 0.75, 0.5, 0.25]


@pytest.mark.parametrize(
    ("flags", "words"),
    [
        ({"steps": 4, "block": 1}, "4 steps cannot be divided over 3 blocks of 1 positions. Use --steps 3."),
        ({"block": 0}, "Blocks of 0 positions are impossible."),
        ({"steps": 3, "block": 1, "dtype": "float32"}, "Blocks are drawn in float64 only."),
        ({"steps": 3, "block": 1, "hybrid": 2}, "Blocks and a hand-off to the teacher exclude each other."),
    ],
)
def test_impossible_blocks_are_rejected(flags: dict[str, object], words: str) -> None:
    with pytest.raises(UserError, match=re.escape(words)):
        plan = SamplingPlan.resolve(student(), SamplingConfig(), **flags)
        plan.check_inputs(student(), None, None, teacher())


def test_blocks_are_rejected_where_they_make_no_sense() -> None:
    with pytest.raises(UserError, match="need a masked process"):
        SamplingPlan.resolve(tabulated(Uniform(3), 2), SamplingConfig(), block=1)
    with pytest.raises(UserError, match="exclude each other"):
        SamplingPlan.resolve(student(), SamplingConfig(handoff=HandoffConfig()), block=1)
    given = torch.tensor([[-1, -1, 0], [-1, 0, 0]])
    for batch_size in (1, 2):
        with pytest.raises(UserError, match="2 free positions have different blocks"):
            sample_many(student(), SamplingPlan(steps=2, block=1), 2, given=given, batch_size=batch_size)


def test_forward_passes_are_counted_with_guidance_and_hand_off() -> None:
    own, helper = student(), teacher()
    sample_batch(own, SamplingPlan(steps=2, hybrid=1, sampler="confidence"), Noise(0, range(5)), teacher=helper)
    assert (own.passes, helper.passes) == (5, 5)
    guided = tabulated(Masked(3), 4, labels=2)
    plan = SamplingPlan(steps=2, guidance=2.0, sampler="confidence")
    sample_batch(guided, plan, Noise(0, range(5)), torch.zeros(5, dtype=torch.long))
    assert guided.passes == 5 + 10  # guidance has no weight at t = 1
