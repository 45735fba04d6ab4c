"""SIGKILL three times, restart with the same command: the same student bit for bit."""

from __future__ import annotations

from pathlib import Path

import pytest

from tools.kill_many import kill_and_compare


@pytest.mark.slow
def test_killed_run_gives_the_student_of_an_undisturbed_one(tmp_path: Path) -> None:
    result = kill_and_compare(tmp_path, kills=3, seed=1, rounds=2)
    assert result["kills"] == 3
    assert int(str(result["inside_a_checkpoint"])) >= 1
    assert result["rows_complete"]
    assert result["equal"]
    assert result["leftovers"] == 0
