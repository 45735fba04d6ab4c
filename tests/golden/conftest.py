"""Where the golden files are: this folder, or another one with the same layout and other sizes."""

from __future__ import annotations

import os
from pathlib import Path

import pytest


@pytest.fixture(scope="session")
def golden() -> Path:
    return Path(os.environ.get("DI4C_GOLDEN") or Path(__file__).parent)
