"""What the fault tests share: the small teacher and run of the training tests, and a root without its powers."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import pytest
import torch

from tests.helpers.faults import obeys_permissions
from tests.helpers.small_run import make_teacher


@pytest.fixture(scope="session")
def teacher(tmp_path_factory: pytest.TempPathFactory) -> Path:
    torch.set_num_threads(1)
    return make_teacher(tmp_path_factory.mktemp("models") / "teacher")


@pytest.fixture
def closed(tmp_path: Path) -> Iterator[Path]:
    """A folder nobody may write to, not even root, while the test runs."""
    folder = tmp_path / "closed"
    folder.mkdir()
    folder.chmod(0o555)
    with obeys_permissions() as obeyed:
        if not obeyed:
            pytest.skip("this account can write everywhere")
        yield folder
    folder.chmod(0o755)
