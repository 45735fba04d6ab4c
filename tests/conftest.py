"""For every test: one thread each (the suite runs one process per core), no outside network, no user's caches."""

from __future__ import annotations

import os
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[1]
pytest.register_assert_rewrite("tests.helpers")

os.environ.setdefault("OMP_NUM_THREADS", "1")
os.environ.setdefault("MPLBACKEND", "Agg")
# some virtual machines announce AMX and kill the process that uses it (docs/troubleshooting.md)
os.environ.setdefault("ONEDNN_MAX_CPU_ISA", "AVX512_CORE_FP16")
# commands that a test starts use this checkout, and may be modules of tests.helpers
os.environ["PYTHONPATH"] = os.pathsep.join(filter(None, [str(ROOT), os.environ.get("PYTHONPATH")]))
os.environ["HF_HUB_DISABLE_TELEMETRY"] = "1"
os.environ["HF_HUB_DISABLE_XET"] = "1"


@pytest.fixture(autouse=True)
def _elsewhere(tmp_path_factory: pytest.TempPathFactory, monkeypatch: pytest.MonkeyPatch) -> None:
    """Each test runs in a folder of its own: what a command writes by default must not land in the checkout."""
    monkeypatch.chdir(tmp_path_factory.mktemp("cwd"))
