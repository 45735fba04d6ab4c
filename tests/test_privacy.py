"""What SECURITY.md promises beyond checkpoints: no reports, no connections, nothing built from recipes or data."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

import numpy as np
import pytest

from di4c_cli import hub, recipe_file
from di4c_cli.data import images
from di4c_cli.errors import UserError

ROOT = Path(__file__).parents[1]
NEXT = "--"
WATCHED = """
import sys
def hook(event, arguments):
    if event in ("socket.connect", "socket.getaddrinfo", "socket.gethostbyname", "socket.sendto"):
        print("CONNECTION", event, arguments[-1:], file=sys.stderr, flush=True)
sys.addaudithook(hook)
from di4c_cli.__main__ import main
line = []
for word in [*sys.argv[1:], "--"]:
    if word != "--":
        line.append(word)
    elif line:
        sys.argv = ["di4c", *line]
        line = []
        try:
            main()
        except SystemExit as end:
            if end.code:
                raise
        print("COMMAND DONE", file=sys.stderr)
"""


def python(code: str, *words: str, **environment: str) -> subprocess.CompletedProcess[str]:
    """A fresh interpreter whose environment says nothing about telemetry unless asked to."""
    env = {key: value for key, value in os.environ.items() if "TELEMETRY" not in key} | environment
    return subprocess.run([sys.executable, "-c", code, *words], capture_output=True, text=True, check=False, env=env)


AGENT = (
    "import di4c_cli.hub\n"
    "from huggingface_hub import constants\n"
    "from huggingface_hub.utils import build_hf_headers\n"
    "print(constants.HF_HUB_DISABLE_TELEMETRY, build_hf_headers(token=False)['user-agent'])"
)


def test_hub_client_reports_nothing() -> None:
    done = python(AGENT)
    assert done.returncode == 0, done.stderr
    off, agent = done.stdout.split(" ", 1)
    assert off == "True" and "torch" not in agent


def test_telemetry_setting_of_the_user_stands() -> None:
    assert python(AGENT, HF_HUB_DISABLE_TELEMETRY="0").stdout.startswith("False")


def test_telemetry_is_off_before_any_library_is_imported() -> None:
    code = "import os, sys, di4c_cli\nprint(os.environ['HF_HUB_DISABLE_TELEMETRY'], 'huggingface_hub' in sys.modules)"
    assert python(code).stdout == "1 False\n"


@pytest.mark.slow
@pytest.mark.parametrize(
    "lines",
    [
        [
            ["distill", "--iterations", "1", "--batch", "2", "--out", "runs/a"],
            ["eval", "--student", "runs/a", "-n", "20", "--steps", "1"],
            ["report", "runs/a"],
        ],
        [["sample", "-n", "2", "--steps", "2"], ["convert", "words", "mine"], ["teachers"], ["recipes"]],
        [["bench-latency", "--steps", "1", "--batch-size", "1", "--warmup", "1"]],
    ],
    ids=["a run", "models", "a benchmark"],
)
def test_commands_attempt_no_connection(lines: list[list[str]]) -> None:
    """Commands of one case share an interpreter, because torch is imported but once then."""
    done = python(WATCHED, *(word for line in lines for word in (*line, NEXT)))
    assert done.returncode == 0, done.stderr
    assert "CONNECTION" not in done.stderr
    assert done.stderr.count("COMMAND DONE") == len(lines)


@pytest.mark.slow
def test_connection_hook_sees_a_connection(tmp_path: Path) -> None:
    """The same hook on a command that must connect; the address answers nobody."""
    done = python(WATCHED, "sample", "--teacher", "some/model", HF_ENDPOINT="http://127.0.0.1:9", HF_HOME=str(tmp_path))
    assert done.returncode == 1 and "CONNECTION" in done.stderr


def test_recipe_cannot_build_objects(tmp_path: Path) -> None:
    marker, path = tmp_path / "executed", tmp_path / "mine.yaml"
    path.write_text(f"name: !!python/object/apply:os.system ['touch {marker}']\n")
    with pytest.raises(UserError, match="is not read"):
        recipe_file.read(str(path))
    with pytest.raises(UserError):
        recipe_file.parse_assignment(f"a=!!python/object/apply:os.system ['touch {marker}']")
    assert not marker.exists()


def test_npz_is_read_without_pickle(tmp_path: Path) -> None:
    for path in (ROOT / "di4c_cli").rglob("*.py"):
        assert "allow_pickle=True" not in path.read_text(encoding="utf-8"), path
    np.savez(tmp_path / "x.npz", x=np.array([{"a": 1}], dtype=object))
    with pytest.raises(UserError, match="holds object, which di4c does not read"):
        images.open_npz(tmp_path / "x.npz", None, 4, 8)


@pytest.mark.parametrize("name", ["../..", "a/../b", "a/b/c", "/etc/passwd", "a/b--c", "a b/c", "a/", "a/.b"])
def test_hub_ids_cannot_leave_the_cache(name: str) -> None:
    assert not hub.is_id(name)


@pytest.mark.parametrize("revision", ["../main", "a/../../b", "-x", "a b", "", "a" * 300, "a\n"])
def test_revisions_cannot_leave_the_cache(revision: str) -> None:
    with pytest.raises(UserError, match="cannot be a revision"):
        hub.check_revision(revision)
