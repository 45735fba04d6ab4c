"""The command itself: help without torch, version, completion, mistakes."""

from __future__ import annotations

import re
import subprocess
import sys

import pytest
from rich.text import Text
from typer.main import get_command

from di4c_cli import __version__
from di4c_cli.cli.app import COMMANDS, app


def run(*words: str) -> subprocess.CompletedProcess[str]:
    return subprocess.run([sys.executable, "-m", "di4c_cli", *words], capture_output=True, text=True, check=False)


@pytest.mark.slow
def test_help_imports_no_torch() -> None:
    code = (
        "import sys\nfrom di4c_cli.cli.app import app\n"
        "try:\n    app(['--help'])\nexcept SystemExit:\n    pass\n"
        "heavy = {'torch', 'numpy', 'accelerate', 'huggingface_hub', 'matplotlib'} & set(sys.modules)\n"
        "print('HEAVY', sorted(heavy))"
    )
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    assert done.stdout.rstrip().endswith("HEAVY []")
    assert all(command in done.stdout for command in COMMANDS)


@pytest.mark.slow
@pytest.mark.parametrize("command", COMMANDS)
def test_command_help_imports_no_torch(command: str) -> None:
    code = (
        f"import sys\nfrom di4c_cli.cli.app import app\n"
        f"try:\n    app([{command!r}, '--help'])\nexcept SystemExit:\n    pass\nprint('torch' in sys.modules)"
    )
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    assert done.stdout.rstrip().endswith("False")


@pytest.mark.parametrize("command", COMMANDS)
def test_option_help_exists_and_is_shown_as_written(command: str) -> None:
    """Square brackets are markup to the help's printer: `Steps [4].` would be shown as `Steps .`"""
    found = get_command(app).commands[command]
    parameters = [*found.params, *(own for sub in getattr(found, "commands", {}).values() for own in sub.params)]
    assert parameters
    for parameter in parameters:
        told = getattr(parameter, "help", None)
        assert told, f"{command} {parameter.name} has no text"
        assert Text.from_markup(told).plain == told, f"{command} {parameter.name}"
        assert not re.search(r" \.(?!\w)", told), f"{command} {parameter.name}"


def test_version_is_printed_by_the_module() -> None:
    done = run("--version")
    assert done.returncode == 0 and done.stdout == f"di4c {__version__}\n"


@pytest.mark.slow
def test_recipes_list_and_show() -> None:
    listing = run("recipes")
    assert listing.returncode == 0 and "tiny-digits" in listing.stdout
    shown = run("recipes", "show", "tiny-digits")
    assert shown.returncode == 0 and shown.stdout.startswith("# di4c distill")
    wrong = run("recipes", "show", "tiny-digit")
    assert wrong.returncode == 2 and wrong.stdout == "" and "Did you mean 'tiny-digits'?" in wrong.stderr
    assert len(wrong.stderr.strip().splitlines()) == 1


def test_recipes_ignores_a_closed_pipe() -> None:
    command = f"{sys.executable} -m di4c_cli recipes | head -n 1; echo ${{PIPESTATUS[0]}}"
    done = subprocess.run(["bash", "-c", command], capture_output=True, text=True, check=True)
    assert done.stderr == "" and done.stdout.splitlines()[-1] in ("0", "1")


def test_completion_is_offered() -> None:
    done = run("--show-completion", "bash")
    assert done.returncode == 0 or "--show-completion" in run("--help").stdout
