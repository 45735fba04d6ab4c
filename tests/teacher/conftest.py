"""The golden checkpoints, as the many formats to read."""

from __future__ import annotations

from pathlib import Path

import pytest

GOLDEN = Path(__file__).parents[1] / "golden"


@pytest.fixture(scope="session")
def golden() -> Path:
    return GOLDEN
