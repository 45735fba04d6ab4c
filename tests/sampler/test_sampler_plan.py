"""Sampling plans: ranges, tiles and batches, and what a request makes of a model's defaults."""

from __future__ import annotations

import subprocess
import sys
from typing import Any
from unittest import mock

import pytest
import torch
from hypothesis import given as cases
from hypothesis import strategies as st

import di4c_cli
from di4c_cli.denoiser import Denoiser
from di4c_cli.errors import UserError
from di4c_cli.noise import Noise
from di4c_cli.process import Masked
from di4c_cli.sampler.config import HandoffConfig, SamplingConfig
from di4c_cli.sampler.loop import sample_batch, sample_many
from di4c_cli.sampler.plan import MAX_SYMBOLS, SamplingPlan, check_ranges, default_head_rows
from tests.helpers.sampler_table import tabulated

EDGES: list[tuple[dict[str, Any], dict[str, Any]]] = [
    ({"steps": 1}, {"steps": 0}),
    ({"steps": 3, "hybrid": 3}, {"steps": 3, "hybrid": 4}),
    ({"hybrid": 0}, {"hybrid": -1}),
    ({"temperature": 1e-9}, {"temperature": 0.0}),
    ({"temperature": 1e9}, {"temperature": float("inf")}),
    ({"top_p": 1e-9}, {"top_p": 0.0}),
    ({"top_p": 1.0}, {"top_p": 1.001}),
    ({"guidance": -3.0}, {"guidance": float("inf")}),
    ({"handoff_time": 1e-9}, {"handoff_time": 0.0}),
    ({"handoff_time": 0.999}, {"handoff_time": 1.0}),
    ({"sampler": "tau-leaping", "handoff_time": 0.5}, {"sampler": "confidence", "handoff_time": 0.5}),
    ({"corrector": 0}, {"corrector": -1}),
    ({"corrector_step": 1e-9}, {"corrector_step": 0.0}),
    ({"corrector_step": 1.0}, {"corrector_step": 1.001}),
    ({"tile": 0}, {"tile": -1}),
    ({"head_rows": 1}, {"head_rows": 0}),
    ({"dtype": "float32"}, {"dtype": "float16"}),
]


@pytest.mark.parametrize(("allowed", "rejected"), EDGES, ids=str)
def test_check_ranges_at_the_last_allowed_value_and_the_first_rejected(
    allowed: dict[str, Any], rejected: dict[str, Any]
) -> None:
    SamplingPlan(**allowed)
    check_ranges(allowed)
    with pytest.raises(UserError):
        SamplingPlan(**rejected)
    with pytest.raises(UserError):
        check_ranges(rejected)


def test_check_ranges_without_steps_allows_any_hybrid() -> None:
    check_ranges({"steps": None, "hybrid": 1000})


def test_sampler_package_and_plan_do_not_import_torch() -> None:
    code = "import sys, di4c_cli.sampler, di4c_cli.sampler.config, di4c_cli.sampler.plan; print('torch' in sys.modules)"
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    assert done.stdout == "False\n"


def denoiser(length: int = 4, symbols: int = 3) -> Denoiser:
    """With labels; only its sizes matter for a plan."""
    model = tabulated(Masked(symbols), 2, labels=3)
    model.network.length = length  # type: ignore[assignment]
    return model


def plan_of(config: SamplingConfig, steps: int | None = None, labelled: bool = False, **flags: Any) -> SamplingPlan:
    return SamplingPlan.resolve(denoiser(), config, labelled, steps=steps, **flags)


def test_plan_has_a_tile_of_one_from_256_positions_on() -> None:
    own = SamplingConfig(tile=5)
    for length, tile in ((1, 5), (255, 5), (256, 1), (1024, 1)):
        assert SamplingPlan.resolve(denoiser(length), own).tile == tile
        assert SamplingPlan.resolve(denoiser(), own, length=length).tile == tile
        assert SamplingPlan.resolve(denoiser(length), own, tile=3).tile == 3
        assert SamplingPlan.resolve(denoiser(length), own, tile=0).tile == 0


@cases(st.integers(1, 40_000), st.sampled_from([16, 0, 1, 5]))
def test_batch_size_is_the_most_whole_tiles_within_the_symbols_of_a_batch(length: int, tile: int) -> None:
    size, one = SamplingPlan(tile=tile).batch_size(length), tile or 1
    most = MAX_SYMBOLS["cpu" if tile else "gpu"]
    assert size >= one and size % one == 0
    assert size == one or size * length <= most
    assert (size + one) * length > most


@cases(st.integers(2, 1 << 25))
def test_default_head_rows_are_the_most_within_32_megabytes(symbols: int) -> None:
    rows = default_head_rows(symbols)
    assert rows in [1 << k for k in range(4, 11)]
    assert rows == 16 or rows * symbols * 4 <= 32 << 20
    assert rows == 1024 or 2 * rows * symbols * 4 > 32 << 20


def test_plan_takes_head_rows_from_the_number_of_symbols_unless_given() -> None:
    large = tabulated(Masked(3), 2)
    large.process.symbols = 50_257
    assert SamplingPlan.resolve(large, SamplingConfig()).head_rows == default_head_rows(50_257) < 1024
    assert SamplingPlan.resolve(large, SamplingConfig(), head_rows=7).head_rows == 7


def test_plan_settings_name_what_is_on() -> None:
    always = {"steps": 4, "sampler": "analytical", "last": "sample", "grid": "uniform", "dtype": "float64"}
    always |= {"tile": 16, "head_rows": 1024}
    assert SamplingPlan().settings() == always
    on = {"guidance": 2.0, "temperature": 0.5, "top_p": 0.9, "hybrid": 1, "handoff_time": 0.4}
    assert SamplingPlan(**on).settings() == always | on
    assert SamplingPlan(corrector=2).settings() == always | {"corrector": 2, "corrector_step": 1e-4}


OWN = SamplingConfig(sampler="confidence", steps=8, guidance=3.0, tile=4)


def test_plan_prefers_flags_to_the_defaults() -> None:
    own = SamplingPlan(sampler="confidence", steps=8, guidance=3.0, tile=4)
    assert plan_of(OWN, labelled=True) == own
    assert plan_of(OWN).guidance == 0 and plan_of(OWN, labelled=True, guidance=1.5).guidance == 1.5
    asked = plan_of(OWN, 2, True, sampler="analytical", guidance=None)
    assert asked == SamplingPlan(steps=2, guidance=3.0, tile=4)
    with pytest.raises(UserError, match="'magic'"):
        plan_of(OWN, magic=1)


def handoff(**keys: Any) -> SamplingConfig:
    return SamplingConfig(handoff=HandoffConfig(**keys))


def shares(config: SamplingConfig, steps: tuple[int, ...], labelled: bool = False) -> dict[int, tuple[int, Any]]:
    """The teacher's steps and the time of the first step, for each number of steps."""
    made = {count: plan_of(config, count, labelled) for count in steps}
    return {count: (plan.hybrid, plan.handoff_time) for count, plan in made.items()}


def test_handoff_leaves_the_later_steps_to_the_teacher() -> None:
    own = handoff(after=2, time=0.3, max_steps=6)
    assert shares(own, (1, 2, 3, 6, 7)) == {
        1: (0, None),
        2: (0, None),
        3: (1, 0.3),
        6: (4, 0.3),
        7: (7, None),  # the teacher makes every step, on its own grid
    }
    assert plan_of(own).hybrid == 2
    asked = plan_of(own, 4, hybrid=1, handoff_time=0.6)
    assert (asked.hybrid, asked.handoff_time) == (1, 0.6)
    assert plan_of(own, 4, hybrid=1).handoff_time == 0.3 and plan_of(own, 4, hybrid=0).handoff_time is None
    confident = plan_of(own, 4, sampler="confidence")
    assert (confident.hybrid, confident.handoff_time) == (2, None)
    assert plan_of(handoff(after=1), 9).hybrid == 8


def test_handoff_with_a_label_has_its_own_limit() -> None:
    own = handoff(time=0.3, max_steps_labelled=2)
    assert shares(own, (1, 2, 3), labelled=True) == {1: (0, None), 2: (1, 0.3), 3: (3, None)}
    assert plan_of(own, 3).hybrid == 2
    assert plan_of(own, 3, labelled=True, hybrid=1).hybrid == 1
    never = handoff(max_steps=4, max_steps_labelled=0)
    assert [plan_of(never, steps, True).hybrid for steps in (1, 5)] == [1, 5]
    other = handoff(max_steps=4)
    assert [plan_of(other, steps, True).hybrid for steps in (4, 5)] == [3, 5]


def test_handoff_shrinks_the_first_step_with_more_steps() -> None:
    own = handoff(time=0.2, shrink=0.5)
    found = [plan_of(own, steps).handoff_time for steps in (1, 2, 4, 8)]
    assert found == [None, pytest.approx(0.2), pytest.approx(1 - 0.8 * 0.5**0.5), pytest.approx(0.6)]
    assert plan_of(handoff(shrink=0.5), 8).handoff_time is None


def test_sample_many_gives_the_batches_of_one_stream() -> None:
    """Numbers, labels and given symbols reach the batch they belong to."""
    model = tabulated(Masked(3), 4, components=2, labels=3, seed=30)
    plan, label = SamplingPlan(steps=2), torch.tensor([0, 2, 1, 0, 2])
    given = torch.full((5, 4), -1)
    given[torch.arange(5), torch.arange(5) % 4] = torch.arange(5) % 3
    whole = sample_batch(model, plan, Noise(6, range(10, 15)), label, given)
    seen: list[int] = []
    done: list[int] = []
    x = sample_many(
        model, plan, 5, seed=6, label=label, batch_size=2, first=10, given=given,
        on_step=lambda left, t, x: seen.append(len(x)), advance=done.append,
    )  # fmt: skip
    assert torch.equal(x, whole) and seen == [2, 2, 2, 2, 1, 1] and done == [2, 2, 1]
    free = sample_batch(model, plan, Noise(0, range(5)), torch.full((5,), 2))
    assert torch.equal(sample_many(model, plan, 5, label=2), free)
    assert torch.equal(sample_many(model, plan, 5, given=given[0]), sample_many(model, plan, 5, given=given[:1]))
    assert not bool(sample_many(model, plan, 5, given=torch.zeros(4, dtype=torch.long)).any())
    assert sample_many(model, plan, 0).shape == (0, 4)


def test_sample_many_rejects_labels_and_given_symbols_of_another_number() -> None:
    model = tabulated(Masked(3), 4, labels=3)
    with pytest.raises(UserError, match="2 labels do not fit 1 samples"):
        sample_many(model, SamplingPlan(), 1, label=torch.tensor([1, 2]))
    with pytest.raises(UserError, match="2 rows of given symbols do not fit 3 samples"):
        sample_many(model, SamplingPlan(), 3, given=torch.zeros(2, 4, dtype=torch.long))


def test_precision_bf16_rounds_the_network_only() -> None:
    """Samples in bf16 are others, of the same shape, and mostly equal; the draws stay exact."""
    model = di4c_cli.load("digits")
    whole, narrow = (model.sample(20, steps=2, seed=3, precision=name) for name in ("fp32", "bf16"))
    assert whole.shape == narrow.shape and float((whole == narrow).double().mean()) > 0.5
    with pytest.raises(UserError, match="precision is 'fp8'"):
        model.plan(precision="fp8")


def test_deterministic_plans_have_tiles_on_a_gpu() -> None:
    model = di4c_cli.load("digits").denoiser
    with mock.patch.object(type(model), "device", torch.device("cuda")):
        assert SamplingPlan.resolve(model, SamplingConfig()).tile == 0
        assert SamplingPlan.resolve(model, SamplingConfig(), deterministic=True).tile == 16
