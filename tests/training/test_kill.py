"""SIGKILL three times, restart with the same command: the same student bit for bit."""

from __future__ import annotations

from pathlib import Path

import pytest

from tools.kill_many import kill_and_compare


@pytest.mark.slow
@pytest.mark.parametrize(("rounds", "lora"), [(2, 0), (1, 2)], ids=["two rounds", "an adapter"])
def test_killed_run_gives_the_student_of_an_undisturbed_one(tmp_path: Path, rounds: int, lora: int) -> None:
    kills = 3 if lora == 0 else 2
    result = kill_and_compare(tmp_path, kills=kills, seed=1, rounds=rounds, lora=lora)
    assert result["kills"] == kills
    assert int(str(result["inside_a_checkpoint"])) >= 1
    assert result["rows_complete"]
    assert result["equal"]
    assert result["leftovers"] == 0
