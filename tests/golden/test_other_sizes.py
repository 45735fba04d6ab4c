"""The tests of the stored folder on one with other sizes: everything is inferred from the files."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

import pytest

from tests.helpers import other_sizes

HERE = Path(__file__).parent


@pytest.mark.slow
def test_formats_read_other_sizes(tmp_path: Path) -> None:
    other_sizes.write(tmp_path)
    tests = [str(HERE / "test_transformers.py"), str(HERE / "test_convolutional.py")]
    done = subprocess.run(
        [sys.executable, "-m", "pytest", "-q", "-n0", "-p", "no:cacheprovider", *tests],
        env={**os.environ, "DI4C_GOLDEN": str(tmp_path), "OMP_NUM_THREADS": "1"},
        capture_output=True,
        text=True,
        check=False,
    )
    assert done.returncode == 0, done.stdout[-3000:]
    assert " skipped" not in done.stdout
