"""bf16 on processors that announce matrix tiles and cannot use them."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path
from types import SimpleNamespace

import pytest

from di4c_cli.training import processor


def test_reads_the_flags(tmp_path: Path) -> None:
    file = tmp_path / "cpuinfo"
    file.write_text("flags : fpu amx_tile\n")
    assert processor.announces_tiles(file)
    file.write_text("flags : fpu\n")
    assert not processor.announces_tiles(file)
    assert not processor.announces_tiles(tmp_path / "nothing")


@pytest.mark.parametrize(("code", "avoided"), [(-4, True), (0, False), (1, False)])
def test_a_processor_that_dies_is_told_to_do_without(
    monkeypatch: pytest.MonkeyPatch, code: int, avoided: bool
) -> None:
    monkeypatch.delenv(processor.VARIABLE, raising=False)
    monkeypatch.setattr(processor, "announces_tiles", lambda: True)
    monkeypatch.setattr(subprocess, "run", lambda *_, **__: SimpleNamespace(returncode=code))
    assert processor.avoid_broken_tiles() is avoided
    assert (os.environ.get(processor.VARIABLE) == processor.WITHOUT_TILES) is avoided


def test_what_the_user_says_stands(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv(processor.VARIABLE, "DEFAULT")
    monkeypatch.setattr(processor, "announces_tiles", lambda: True)
    assert not processor.avoid_broken_tiles()


def test_after_the_trial_bf16_works_here() -> None:
    """The real thing on this machine: trial, then a product in half precision, in a fresh process."""
    code = f"from di4c_cli.training.processor import avoid_broken_tiles as a; a(); {processor.TRIAL}"
    free = {key: value for key, value in os.environ.items() if key != processor.VARIABLE}
    assert subprocess.run([sys.executable, "-c", code], env=free, check=False).returncode == 0
