"""Odd results, outputs, devices and launcher variables: each gets one sentence."""

from __future__ import annotations

import json
import os
from pathlib import Path

import pytest

from tests.helpers.faults import call, process, told
from tests.hostile.payloads import assert_clean
from tests.hostile.test_sinks import results


@pytest.fixture
def evaluation(tmp_path: Path) -> Path:
    results("x").save(tmp_path / "results.json")
    return tmp_path


def test_report_rejects_outputs_that_are_not_files(evaluation: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(evaluation)
    os.mkfifo("pipe.html")
    os.symlink("loop", "loop")
    os.symlink("/dev/null", "null.html")
    for out in ("/dev/null", "/dev/full", "/dev/stdout", "/dev/fd/1", ".", "", "/", "pipe.html", "loop", "null.html"):
        told(call("report", evaluation, "--out", out), 2)
    assert not Path("/dev/null").is_file()


def test_report_follows_a_link(evaluation: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(evaluation)
    os.symlink("real.html", "link.html")
    assert_clean(call("report", evaluation, "--out", "link.html"), 0)
    assert Path("link.html").is_symlink() and Path("real.html").is_file()


@pytest.mark.parametrize("out", ["dangling", "dangling/x/y"])
@pytest.mark.parametrize(
    "words",
    [
        ("report", "."),
        ("convert", "digits"),
        ("eval", "--teacher", "digits", "--steps", 1, "-n", 2),
        ("sample", "--teacher", "digits", "-n", 1, "--steps", 1),
        ("distill", "--teacher", "digits", "--recipe", "di4c/digits", "--iterations", 1, "--batch", 2),
    ],
)
def test_no_folder_is_created_where_a_broken_link_points(
    words: tuple[object, ...], out: str, evaluation: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(evaluation)
    os.symlink("nowhere/at/all", "dangling")
    before = sorted(os.listdir())
    result = call(*words, *([] if words[0] == "convert" else ["--out"]), out)
    assert_clean(result, 2)
    assert "a link to a folder that does not exist" in result.stderr
    assert sorted(os.listdir()) == before


@pytest.mark.parametrize(
    ("key", "value"),
    [("steps", 10**400), ("n", -1), ("settings", {"temperature": [1]}), ("figures", {}), ("seed", 10**100)],
)
def test_damaged_results_are_reported(evaluation: Path, key: str, value: object) -> None:
    """Numbers of any length, settings of any type, steps saved of cells that do not exist."""
    path = evaluation / "results.json"
    tree = json.loads(path.read_text())
    figure = {"value": 1.0}
    names = ("quality", "teacher_quality", "steps_saved", "ratio")
    tree["steps_saved"] = [{"steps": k, "at_least": False} | dict.fromkeys(names, figure) for k in (1, 9, 2)]
    for cell in tree["cells"]:
        cell[key] = value
    path.write_text(json.dumps(tree))
    assert_clean(call("report", evaluation), 0, 2)
    assert_clean(call("compare", evaluation, evaluation), 0, 2)


def test_report_ignores_odd_files_of_a_run(evaluation: Path) -> None:
    """Invalid UTF-8, deep nesting and huge numbers in the files beside the results."""
    (evaluation / "recipe.yaml").write_bytes(b"name: \xff\x1b]0;x\x07\n")
    deep, huge = "[" * 100_000, json.dumps({"loss": 1e308, "kl": 10**30})
    (evaluation / "metrics.jsonl").write_bytes(b"\xff\n" + "\n".join([deep, huge, huge, huge]).encode())
    (evaluation / "latency.json").write_text(deep)
    assert_clean(call("report", evaluation), 0)


@pytest.mark.parametrize("device", ["meta", "hpu", "privateuseone", "", "cpu:x", "\x1b[31m"])
def test_strange_devices_are_rejected(device: str) -> None:
    told_last(call("sample", "-n", 1, "--steps", 1, "--device", device))


def told_last(result: object) -> None:
    """The last line is the sentence; a line before it names the default model."""
    assert_clean(result, 2)
    assert result.stderr.strip().splitlines()[-1].startswith("di4c: ")  # type: ignore[attr-defined]


@pytest.mark.parametrize(
    "variables",
    [
        {"WORLD_SIZE": "abc"},
        {"WORLD_SIZE": ""},
        {"WORLD_SIZE": "2"},
        {"LOCAL_RANK": "\x1b[31m"},
        {"LOCAL_RANK": "0"},
        {"LOCAL_RANK": "0", "RANK": "3", "WORLD_SIZE": "1", "MASTER_ADDR": "127.0.0.1"},
        {"LOCAL_RANK": "0", "WORLD_SIZE": "9" * 20, "MASTER_ADDR": "127.0.0.1"},
        {"LOCAL_RANK": "0", "MASTER_ADDR": "127.0.0.1", "MASTER_PORT": "abc"},
    ],
)
def test_strange_launcher_variables_are_rejected(variables: dict[str, str], monkeypatch: pytest.MonkeyPatch) -> None:
    for name, value in variables.items():
        monkeypatch.setenv(name, value)
    told(call("distill", "--iterations", 1), 2, "environment variable")


def test_unknown_backend_of_matplotlib_is_ignored(evaluation: Path) -> None:
    done = process("report", evaluation, MPLBACKEND="nope")
    assert done.returncode == 0 and done.stderr == ""
