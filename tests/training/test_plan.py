"""Every sample of a step belongs to exactly one backward pass of one process."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from di4c_cli.errors import UserError
from di4c_cli.training.plan import make_batch_plan


@given(st.integers(1, 5), st.integers(1, 4), st.integers(1, 4), st.integers(0, 1000))
def test_processes_share_a_step_without_overlap(processes: int, passes: int, micro: int, step: int) -> None:
    plan = make_batch_plan(processes * passes * micro, micro, processes)
    seen = [
        first + offset for rank in range(processes) for first in plan.starts(step, rank) for offset in range(plan.micro)
    ]
    assert sorted(seen) == list(range(step * plan.batch, (step + 1) * plan.batch))
    assert (plan.passes, plan.micro) == (passes, micro)


def test_batch_plan_without_micro_batch_takes_the_share_at_once() -> None:
    assert (make_batch_plan(12, None, 3).passes, make_batch_plan(12, None, 3).micro) == (1, 4)
    assert make_batch_plan(4, 100, 1).micro == 4


def test_uneven_divisions_are_refused_with_a_number_that_works() -> None:
    with pytest.raises(UserError, match="--batch 6"):
        make_batch_plan(4, None, 3)
    with pytest.raises(UserError, match="micro_batch=3"):
        make_batch_plan(12, 5, 2)
