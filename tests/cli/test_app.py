"""The command itself: help without torch, version, completion, mistakes."""

from __future__ import annotations

import re
import shlex
import subprocess
import sys

import pytest
from rich.text import Text
from typer.main import get_command
from typer.testing import CliRunner

from di4c_cli import __version__
from di4c_cli.cli.app import COMMANDS, GREETING, app


def run(*words: str) -> subprocess.CompletedProcess[str]:
    return subprocess.run([sys.executable, "-m", "di4c_cli", *words], capture_output=True, text=True, check=False)


def imported_by(*words: str) -> tuple[set[str], str]:
    """Top-level modules that a command imports, and its output."""
    code = (
        "import sys\nfrom di4c_cli.cli.app import app\n"
        f"try:\n    app({list(words)!r})\nexcept SystemExit:\n    pass\n"
        "print('IMPORTED', *{name.partition('.')[0] for name in sys.modules})"
    )
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    output, _, modules = done.stdout.rpartition("IMPORTED")
    return set(modules.split()), output


@pytest.mark.parametrize("words", [["--help"], [], ["--version"]], ids=["help", "greeting", "version"])
def test_help_imports_nothing_large(words: list[str]) -> None:
    """The help takes as long as Typer's import: the modules of the commands and what they need stay out."""
    modules, output = imported_by(*words)
    large = {
        "torch",
        "numpy",
        "pydantic",
        "yaml",
        "rich",
        "accelerate",
        "huggingface_hub",
        "matplotlib",
        "PIL",
        "psutil",
    }
    assert modules & large == set() and "typer" in modules
    if words == ["--help"]:
        assert all(command in output and told.line in output for command, told in COMMANDS.items())


def test_greeting_names_commands_that_exist() -> None:
    done = run()
    assert done.returncode == 0 and done.stdout.strip() == GREETING
    assert {line.split()[1] for line in GREETING.splitlines() if line.startswith("  di4c")} <= COMMANDS.keys()


@pytest.mark.parametrize("command", COMMANDS)
def test_example_of_the_help_parses(command: str) -> None:
    """The example belongs to the command, and its options and arguments exist."""
    words = shlex.split(COMMANDS[command].example)
    assert words[:2] == ["di4c", command]
    root = get_command(app)
    found = root.get_command(None, command)
    found.make_context(command, words[2:], resilient_parsing=False)
    assert COMMANDS[command].example in CliRunner().invoke(app, [command, "--help"]).output


@pytest.mark.slow
@pytest.mark.parametrize("command", COMMANDS)
def test_command_help_imports_no_torch(command: str) -> None:
    assert "torch" not in imported_by(command, "--help")[0]


@pytest.mark.parametrize("command", COMMANDS)
def test_option_help_exists_and_is_shown_as_written(command: str) -> None:
    """Square brackets are markup to Rich: an older Typer would show `Steps [4].` as `Steps .`"""
    found = get_command(app).get_command(None, command)
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
    assert listing.returncode == 0 and "digits" in listing.stdout
    shown = run("recipes", "show", "digits")
    assert shown.returncode == 0 and shown.stdout.startswith("# di4c distill")
    wrong = run("recipes", "show", "digit")
    assert wrong.returncode == 2 and wrong.stdout == "" and "Did you mean 'digits'?" in wrong.stderr
    assert len(wrong.stderr.strip().splitlines()) == 1


def test_recipes_ignores_a_closed_pipe() -> None:
    command = f"{sys.executable} -m di4c_cli recipes | head -n 1; echo ${{PIPESTATUS[0]}}"
    done = subprocess.run(["bash", "-c", command], capture_output=True, text=True, check=True)
    assert done.stderr == "" and done.stdout.splitlines()[-1] in ("0", "1")


def test_completion_is_offered() -> None:
    done = run("--show-completion", "bash")
    assert done.returncode == 0 or "--show-completion" in run("--help").stdout
