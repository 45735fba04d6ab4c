"""Faults of the surroundings: no home, a clock that jumps, an encoding without λ, paths with everything in them."""

from __future__ import annotations

import ast
import json
import os
import time
from pathlib import Path

import pytest

import di4c_cli
from di4c_cli import recipe_file
from di4c_cli.data import cache
from di4c_cli.errors import Failure
from di4c_cli.training.metrics import read_rows
from di4c_cli.training.run import RunOptions, distill
from tests.helpers.faults import call, process, sentence, told
from tests.helpers.small_run import arguments, same, small_recipe, weights

NOWHERE = "/proc/nowhere"
"""A home that cannot exist, not even for root."""
ASCII = {"LC_ALL": "C", "PYTHONIOENCODING": "ascii", "PYTHONUTF8": "0", "PYTHONCOERCECLOCALE": "0"}
PACKAGE = Path(di4c_cli.__file__).parent


@pytest.mark.slow
def test_distill_works_without_a_home(teacher: Path, tmp_path: Path) -> None:
    """Nothing of it is needed: caches of libraries go to temporary folders, silently."""
    free = ("MPLCONFIGDIR", "XDG_CACHE_HOME", "XDG_CONFIG_HOME", "HF_HOME", "DI4C_CACHE")
    done = process(*arguments(teacher, tmp_path / "run", iterations=2), drop=free, HOME=NOWHERE)
    assert done.returncode == 0, done.stderr
    assert "atplotlib" not in done.stderr and NOWHERE not in done.stderr
    assert (tmp_path / "run" / "student" / "config.json").is_file()


def test_encoding_without_a_home_asks_for_a_cache_folder(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Encoded data does need a place; the sentence says how to give one."""
    for name in ("XDG_CACHE_HOME", "DI4C_CACHE"):
        monkeypatch.delenv(name, raising=False)
    monkeypatch.setenv("HOME", NOWHERE)
    (tmp_path / "words.txt").write_text("we the people " * 200)
    words = ("distill", "--teacher", "words", "--data", tmp_path / "words.txt", "--iterations", 1)
    told(call(*words, "--out", tmp_path / "run"), 1, NOWHERE, "DI4C_CACHE")
    assert not (tmp_path / "run").exists()


def test_cache_root_without_a_home_directory_fails(monkeypatch: pytest.MonkeyPatch) -> None:
    def homeless() -> Path:
        raise RuntimeError("Could not determine home directory.")

    for name in ("XDG_CACHE_HOME", "DI4C_CACHE"):
        monkeypatch.delenv(name, raising=False)
    monkeypatch.setattr(Path, "home", homeless)
    with pytest.raises(Failure, match="no home directory"):
        cache.root()
    monkeypatch.setenv("DI4C_CACHE", "/somewhere")
    assert cache.root() == Path("/somewhere")


@pytest.mark.slow
def test_distill_ignores_a_clock_that_jumps(teacher: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """The wall clock falls back by a year at every look; the student and the durations do not notice."""
    recipe = small_recipe(teacher)
    distill(recipe, tmp_path / "calm", RunOptions())
    year, looks = 365 * 86400.0, [time.time()]

    def falling() -> float:
        looks.append(looks[-1] - year)
        return looks[-1]

    monkeypatch.setattr(time, "time", falling)
    distill(recipe, tmp_path / "jumping", RunOptions())
    monkeypatch.undo()
    assert same(weights(tmp_path / "calm"), weights(tmp_path / "jumping"))
    assert all(0 <= row["seconds"] < 60 for row in read_rows(tmp_path / "jumping" / "metrics.jsonl"))


@pytest.mark.slow
@pytest.mark.parametrize("when", [0, 2**32])
def test_distill_ignores_the_dates_of_files(teacher: Path, tmp_path: Path, when: int) -> None:
    """Checkpoints are ordered by their step: a run whose files are dated 1970 or 2106 goes on all the same."""
    out = tmp_path / "run"
    recipe = small_recipe(teacher, training__iterations=9)

    def stop(row: dict[str, object]) -> None:
        if row["step"] == 8:
            raise Failure("stop here")

    with pytest.raises(Failure, match="stop here"):
        distill(recipe, out, RunOptions(report=stop))
    os.utime(out / "round-1" / "checkpoints" / "step-00000006", (when, when))
    os.utime(out / "metrics.jsonl", (when, when))
    distill(recipe, out, RunOptions())
    assert [row["step"] for row in read_rows(out / "metrics.jsonl")] == list(range(1, 10))


def test_durations_come_from_the_monotonic_clock() -> None:
    """`time.time` and `datetime.now` measure nothing: the first is not used, the second only dates results."""
    for path in PACKAGE.rglob("*.py"):
        for node in ast.walk(ast.parse(path.read_text(encoding="utf-8"))):
            if isinstance(node, ast.Attribute) and isinstance(node.value, ast.Name):
                assert (node.value.id, node.attr) != ("time", "time"), path
                if node.attr in ("now", "utcnow"):
                    assert path.parent.name == "evaluation", path


@pytest.mark.slow
def test_distill_works_in_ascii_with_unusual_paths(teacher: Path, tmp_path: Path) -> None:
    """A locale without λ, a path with spaces, umlauts and a quote: the run, then its student as JSON."""
    out = tmp_path / "meine Läufe λ" / "it's 1"
    done = process(*arguments(teacher, out, iterations=1), **ASCII)
    assert done.returncode == 0, done.stderr
    assert "Traceback" not in done.stderr and done.stderr.isascii()
    assert "'\"'\"'s 1" in done.stderr, "the next command can be copied"
    again = process("sample", "--student", out, "--steps", 1, "-n", 2, "--out", out / "ä b.png", "--json", **ASCII)
    assert again.returncode == 0, again.stderr
    assert again.stdout.isascii() and json.loads(again.stdout)["n"] == 2
    assert (out / "ä b.png").is_file()


@pytest.mark.parametrize(
    ("words", "code"),
    [
        (["--help"], 0),
        (["distill", "--help"], 0),
        (["recipes"], 0),
        (["recipes", "show", "digits"], 0),
        (["recipes", "show", "größe"], 2),
    ],
)
def test_command_works_in_ascii(words: list[str], code: int) -> None:
    done = process(*words, **ASCII)
    assert done.returncode == code and "Traceback" not in done.stderr
    assert done.stdout.isascii() and done.stderr.isascii()
    if code:
        sentence(done.stderr)


@pytest.mark.slow
def test_readers_accept_unusual_paths(teacher: Path, tmp_path: Path) -> None:
    folder = tmp_path / "Ordner mit ünïcode & 'quotes'"
    assert call("convert", teacher, folder / "mein modell").exit_code == 0
    assert (
        call("sample", "--teacher", folder / "mein modell", "-n", 1, "--steps", 1, "--out", folder / "ä.png").exit_code
        == 0
    )
    assert (folder / "ä.png").is_file()
    recipe = folder / "mein rezept.yaml"
    recipe.write_bytes(recipe_file.find("di4c/digits").read_bytes())
    words = ("distill", "--recipe", recipe, "--teacher", folder / "mein modell", "--out", folder / "lauf")
    result = call(*words, "--iterations", 1, "--batch", 2)
    assert result.exit_code == 0, result.stderr
