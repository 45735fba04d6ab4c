"""A few device arguments are removed, and the parity cases notice; `python -m tests.device --mutate` removes all."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

import pytest

SAMPLE = {
    "methods/kernels/chunked.py: torch.arange(count": "train di4c/digits",
    "latent/prior.py: torch.zeros(len(t)": "sample pixels-student steps=2",
    "sampler/confidence.py: torch.full": "sample fashion steps=2 sampler=confidence dtype=float32",
    "process/masked.py: torch.full": "sample words-student steps=3",
}
"""The start of a call with a device, and a case that reaches it."""


@pytest.mark.slow
def test_cases_notice_a_missing_device() -> None:
    only = [word for pair in SAMPLE.items() for word in ("--only", *pair)]
    command = [sys.executable, "-m", "tests.device", "--mutate", *only]
    done = subprocess.run(command, capture_output=True, text=True, cwd=Path(__file__).parents[2], check=False)
    assert done.returncode == 0, done.stdout + done.stderr
    assert done.stdout.count("noticed ") == len(SAMPLE), done.stdout
