"""A hundred mutated models in one process; `tools/fuzz.py` runs any number."""

from __future__ import annotations

import pytest

from tools import fuzz


@pytest.mark.slow
def test_convert_survives_a_hundred_mutated_models() -> None:
    outcomes = fuzz.run(100, seed=0)
    assert outcomes["refused"] + outcomes["loaded"] == 100
    assert outcomes["peak_mb"] < fuzz.MEGABYTES
    assert outcomes["refused"] > 30 and outcomes["loaded"] > 10, "the mutations must hit, and some be harmless"
