"""One random teacher for all tests of the engine."""

from __future__ import annotations

from pathlib import Path

import pytest
import torch

from tests.helpers.small_run import make_teacher


@pytest.fixture(scope="session")
def teacher(tmp_path_factory: pytest.TempPathFactory) -> Path:
    torch.set_num_threads(1)
    return make_teacher(tmp_path_factory.mktemp("models") / "teacher")
