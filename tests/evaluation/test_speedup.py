"""Steps saved at equal quality: the reading of curves, the intervals, and the command."""

from __future__ import annotations

import json
import math
from pathlib import Path

import pytest
from typer.testing import CliRunner

from di4c_cli.cli.app import app
from di4c_cli.evaluation import speedup
from di4c_cli.evaluation.speedup import Curves, Point, geometric, share, steps_for

CURVE = [(1, 80.0), (2, 40.0), (4, 20.0), (8, 10.0)]


@pytest.mark.parametrize(
    ("value", "steps", "beyond"),
    [
        (80.0, 1.0, False),
        (100.0, 1.0, False),
        (40.0, 2.0, False),
        (80.0 / 2**1.5, 2**1.5, False),
        (10.0, 8.0, False),
        (9.0, 8.0, True),
    ],
)
def test_steps_for_on_a_straight_line(value: float, steps: float, beyond: bool) -> None:
    """Quality 80 / steps is a line in the logarithms, so every value has its exact answer."""
    found, outside = steps_for(CURVE, value)
    assert found == pytest.approx(steps) and outside is beyond


def test_a_curve_that_rises_again_counts_as_its_best() -> None:
    assert steps_for([(1, 8.0), (2, 4.0), (4, 5.0), (8, 2.0)], 4.0) == (2.0, False)
    assert steps_for([(1, 8.0), (2, 4.0), (4, 5.0)], 3.0) == (4.0, True)


def test_geometric_mean_with_student_s_interval() -> None:
    figure = geometric([1.0, 2.0, 4.0])
    assert figure.value == pytest.approx(2.0)
    reach = 4.303 * math.log(2) / math.sqrt(3)
    assert figure.low == pytest.approx(2 * math.exp(-reach)) and figure.high == pytest.approx(
        2 * math.exp(reach)
    )
    assert geometric([3.0]).low is None


def test_shares_may_be_nothing_or_all() -> None:
    """Few samples: none is nearer to a training item, which has no logarithm."""
    figure = share([0.0, 0.0, 0.3])
    assert figure.value == pytest.approx(0.1) and figure.low == 0.0 and 0.1 < (figure.high or 0) < 1.0
    assert share([1.0, 0.9]).high == 1.0
    assert share([0.0]).value == 0.0 and share([0.0]).low is None
    points = {1: Point(80.0, 0.8, 0.0)}
    (saving,) = Curves([points] * 2, [points] * 2).savings()
    assert saving.leaning.value == 0.0


def test_savings_of_known_curves() -> None:
    """A student that is its teacher at four times the steps saves exactly four."""
    teacher = {k: Point(80.0 / k, 0.8 if k < 16 else 1.2, 0.5) for k in (1, 2, 4, 8, 16)}
    student = {k: Point(80.0 / (4 * k), 0.6, 0.53) for k in (1, 2)}
    savings = Curves([teacher] * 3, [student] * 3).savings()
    assert [saving.steps for saving in savings] == [1, 2]
    for saving in savings:
        assert saving.speedup.value == pytest.approx(4.0) and not saving.beyond
        assert saving.ratio.value == pytest.approx(0.25) and saving.diversity.value == pytest.approx(0.75)
        assert saving.diversity_best.value == pytest.approx(0.5)
        assert saving.leaning.value == pytest.approx(0.53)


def test_the_command(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(speedup, "TEACHER_STEPS", (1, 2))
    monkeypatch.setattr(speedup, "STUDENT_STEPS", (1,))
    monkeypatch.setattr(speedup, "REPEATS", 2)
    out = tmp_path / "out"
    line = ["eval", "--protocol", "tiny-speedup", "--student", "tiny-digits-student", "--limit", "40"]
    for _ in range(2):  # the folder is its own the second time
        result = CliRunner().invoke(app, [*line, "--json", "--out", str(out)])
        assert result.exit_code == 0, result.output
    told = json.loads(result.stdout)
    (world,) = told["worlds"]
    assert world["world"] == "tiny-digits" and world["n"] == 40 and world["seeds"] == [0, 1]
    assert told == json.loads((out / "speedup.json").read_text())
    assert (out / "speedup.png").read_bytes().startswith(b"\x89PNG")
    assert world["savings"][0]["speedup"]["low"] <= world["savings"][0]["speedup"]["value"]
    assert set(world["teacher_leaning"]) == {"1", "2"} and 0 <= world["savings"][0]["leaning"]["value"] <= 1
    shown = CliRunner().invoke(app, [*line, "--steps", "3", "--out", str(out)])
    assert shown.exit_code == 0 and "tiny-digits" in shown.output
    (world,) = json.loads((out / "speedup.json").read_text())["worlds"]
    assert [saving["steps"] for saving in world["savings"]] == [3] and "3" in world["teacher_curve"]


@pytest.mark.parametrize(
    "flags",
    [["--teacher", "tiny-digits"], ["--model", "b=tiny-digits"], ["--judge", "gpt2"], ["--samples", "x.npy"]],
)
def test_flags_it_cannot_follow_are_refused(flags: list[str], tmp_path: Path) -> None:
    line = ["eval", "--protocol", "tiny-speedup", "--out", str(tmp_path / "out")]
    done = CliRunner().invoke(app, [*line, *flags])
    assert done.exit_code == 2 and flags[0] in done.stderr and not (tmp_path / "out").exists()


def test_the_device_is_passed_on(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    line = ["eval", "--protocol", "tiny-speedup", "--out", str(tmp_path / "out"), "--device"]
    done = CliRunner().invoke(app, [*line, "nowhere"])
    assert done.exit_code == 2 and "no device 'nowhere'" in done.stderr
    used: list[str] = []
    monkeypatch.setattr(
        speedup,
        "world_speedup",
        lambda world, student, *_: used.append(student.denoiser.device.type) or stop(),
    )
    CliRunner().invoke(app, [*line, "meta"])
    assert used == ["meta"]


def stop() -> None:
    """The rest is not looked at."""
    raise KeyboardInterrupt
