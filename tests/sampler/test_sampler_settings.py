"""Settings: the edges of what is allowed, tiles and batches, what a request makes of a model's own defaults."""

from __future__ import annotations

from typing import Any

import pytest
import torch
from hypothesis import given as cases
from hypothesis import strategies as st

from di4c_cli.config import SamplingDefaults
from di4c_cli.errors import UserError
from di4c_cli.noise import Noise
from di4c_cli.process import Masked
from di4c_cli.sampler.run import sample, sample_many
from di4c_cli.sampler.settings import Settings, resolve
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
    ({"leap": 1e-9}, {"leap": 0.0}),
    ({"leap": 0.999}, {"leap": 1.0}),
    ({"sampler": "tau-leaping", "leap": 0.5}, {"sampler": "confidence", "leap": 0.5}),
    ({"corrector": 0}, {"corrector": -1}),
    ({"corrector_step": 1e-9}, {"corrector_step": 0.0}),
    ({"corrector_step": 1.0}, {"corrector_step": 1.001}),
    ({"tile": 0}, {"tile": -1}),
    ({"head_rows": 1}, {"head_rows": 0}),
]


@pytest.mark.parametrize(("allowed", "refused"), EDGES, ids=str)
def test_the_last_allowed_value_and_the_first_refused(
    allowed: dict[str, Any], refused: dict[str, Any]
) -> None:
    Settings(**allowed)
    with pytest.raises(UserError):
        Settings(**refused)


def test_a_tile_of_one_from_256_positions_on() -> None:
    assert [Settings().tile_for(length) for length in (1, 255, 256, 1024)] == [16, 16, 1, 1]
    assert Settings(tile=3).tile_for(1024) == 3 and Settings(tile=0).tile_for(8) == 0


@cases(st.integers(1, 40_000), st.sampled_from([None, 0, 1, 5]))
def test_a_batch_is_the_most_whole_tiles_within_16384_symbols(length: int, tile: int | None) -> None:
    settings = Settings(tile=tile)
    size, one = settings.batch_for(length), settings.tile_for(length) or 1
    assert size >= one and size % one == 0
    assert size == one or size * length <= 16_384
    assert (size + one) * length > 16_384


@cases(st.integers(2, 1 << 25))
def test_the_head_runs_on_the_most_rows_within_32_megabytes(symbols: int) -> None:
    rows = Settings().head_rows_for(symbols)
    assert rows in [1 << k for k in range(4, 11)]
    assert rows == 16 or rows * symbols * 4 <= 32 << 20
    assert rows == 1024 or 2 * rows * symbols * 4 > 32 << 20
    assert Settings(head_rows=7).head_rows_for(symbols) == 7


def test_results_name_what_is_on() -> None:
    always = {"steps": 4, "sampler": "analytical", "last": "sample", "grid": "uniform", "dtype": "float64"}
    always |= {"tile": None, "head_rows": None}
    assert Settings().named() == always
    on = {"guidance": 2.0, "temperature": 0.5, "top_p": 0.9, "hybrid": 1, "leap": 0.4}
    assert Settings(**on).named() == always | on
    assert Settings(corrector=2).named() == always | {"corrector": 2, "corrector_step": 1e-4}


OWN = SamplingDefaults(sampler="confidence", steps=8, guidance=3.0, tile=4)


def test_what_is_asked_for_comes_before_the_defaults() -> None:
    assert resolve(OWN, 64, labelled=True) == Settings(sampler="confidence", steps=8, guidance=3.0, tile=4)
    assert resolve(OWN, 64).guidance == 0 and resolve(OWN, 64, guidance=1.5).guidance == 1.5
    asked = resolve(OWN, 64, 2, True, sampler="analytical", guidance=None)
    assert asked == Settings(steps=2, guidance=3.0, tile=4)
    assert resolve(OWN, 255).tile == 4 and resolve(OWN, 256).tile is None
    with pytest.raises(UserError, match="'magic'"):
        resolve(OWN, 64, magic=1)


def test_a_leader_leaves_the_later_steps_to_its_teacher() -> None:
    leader = SamplingDefaults(steps=4, lead=2, lead_to=0.3, lead_until=6)
    made = {steps: resolve(leader, 64, steps) for steps in (1, 2, 3, 6, 7)}
    assert {steps: (one.hybrid, one.leap) for steps, one in made.items()} == {
        1: (0, None),
        2: (0, None),
        3: (1, 0.3),
        6: (4, 0.3),
        7: (7, None),  # the teacher alone, on its own grid
    }
    assert resolve(leader, 64).hybrid == 2
    asked = resolve(leader, 64, 4, hybrid=1, leap=0.6)
    assert (asked.hybrid, asked.leap) == (1, 0.6)
    surest = resolve(leader, 64, 4, sampler="confidence")
    assert (surest.hybrid, surest.leap) == (2, None)
    assert resolve(SamplingDefaults(lead=1), 64, 9).hybrid == 8


def test_a_label_may_leave_more_to_the_teacher() -> None:
    leader = SamplingDefaults(lead=1, lead_to=0.3, lead_labelled=2)
    made = {steps: resolve(leader, 64, steps, labelled=True) for steps in (1, 2, 3)}
    assert {steps: (one.hybrid, one.leap) for steps, one in made.items()} == {
        1: (0, None),
        2: (1, 0.3),
        3: (3, None),
    }
    assert resolve(leader, 64, 3).hybrid == 2
    assert resolve(leader, 64, 3, labelled=True, hybrid=1).hybrid == 1
    never = SamplingDefaults(lead=1, lead_until=4, lead_labelled=0)
    assert [resolve(never, 64, steps, labelled=True).hybrid for steps in (1, 5)] == [1, 5]
    other = SamplingDefaults(lead=1, lead_until=4)
    assert [resolve(other, 64, steps, labelled=True).hybrid for steps in (4, 5)] == [3, 5]


def test_a_leader_may_go_less_far_in_longer_walks() -> None:
    leader = SamplingDefaults(lead=1, lead_to=0.2, lead_shrink=0.5)
    leaps = [resolve(leader, 64, steps).leap for steps in (1, 2, 4, 8)]
    assert leaps == [None, pytest.approx(0.2), pytest.approx(1 - 0.8 * 0.5**0.5), pytest.approx(0.6)]
    assert resolve(SamplingDefaults(lead=1, lead_shrink=0.5), 64, 8).leap is None


def test_many_samples_are_the_batches_of_one_stream() -> None:
    """Numbers, labels and given symbols reach the batch they belong to."""
    model = tabulated(Masked(3), 4, components=2, labels=3, seed=30)
    own, label = SamplingDefaults(steps=2), torch.tensor([0, 2, 1, 0, 2])
    given = torch.full((5, 4), -1)
    given[torch.arange(5), torch.arange(5) % 4] = torch.arange(5) % 3
    settings = resolve(own, 4, labelled=True)
    whole = sample(model, settings, Noise(6, range(10, 15)), label, given)
    seen: list[int] = []
    x = sample_many(
        model, own, 5, seed=6, label=label, batch_size=2, first=10, given=given,
        watch=lambda left, t, x: seen.append(len(x)),
    )  # fmt: skip
    assert torch.equal(x, whole) and seen == [2, 2, 2, 2, 1, 1]
    free = sample(model, settings, Noise(0, range(5)), torch.full((5,), 2))
    assert torch.equal(sample_many(model, own, 5, label=2), free)
    assert torch.equal(
        sample_many(model, own, 5, given=given[0]), sample_many(model, own, 5, given=given[:1])
    )
    assert not bool(sample_many(model, own, 5, given=torch.zeros(4, dtype=torch.long)).any())
    assert sample_many(model, own, 0).shape == (0, 4)
