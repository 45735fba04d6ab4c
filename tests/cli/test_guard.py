"""The guard at the edge of every command: one sentence for any exception, and a crash file without private data."""

from __future__ import annotations

import os
import re
import subprocess
import sys
import tempfile
from pathlib import Path
from typing import Any

import pytest
import torch
import typer

from di4c_cli.cli import crash
from di4c_cli.cli.app import app
from di4c_cli.cli.console import command_line
from di4c_cli.cli.guard import guarded
from di4c_cli.errors import UserError
from tests.helpers.faults import call, command, process, sentence, told

SECRET = "hf_QwErTyUiOpAsDfGhJk"


class Panic(BaseException):
    """What a Rust library raises."""


class Mute(Exception):
    """An error that cannot be printed."""

    def __str__(self) -> str:
        raise ValueError("no words")


@pytest.fixture
def crashes(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """The folder of crash files."""
    monkeypatch.setattr(tempfile, "tempdir", str(tmp_path))
    return tmp_path


def ended(error: BaseException) -> int:
    """The exit code of a guarded function that raises."""

    def command() -> None:
        raise error

    with pytest.raises(SystemExit) as end:
        guarded(command)()
    assert isinstance(end.value.code, int)
    return end.value.code


@pytest.mark.parametrize(
    ("error", "place"),
    [
        (torch.OutOfMemoryError("CUDA out of memory. Tried to allocate 20.00 GiB."), "cuda"),
        (RuntimeError("MPS backend out of memory (MPS allocated: 18.10 GB)"), "mps"),
        (RuntimeError("[enforce fail] DefaultCPUAllocator: can't allocate memory: 12 bytes"), "the CPU"),
        (MemoryError(), "the CPU"),
    ],
)
def test_guarded_reports_lack_of_memory_in_one_sentence(
    error: Exception, place: str, capsys: pytest.CaptureFixture[str]
) -> None:
    assert ended(error) == 1
    said = capsys.readouterr().err
    assert said.count("\n") == 1
    assert f"Out of memory on {place}." in said and "--micro-batch 1" in said


def test_guarded_says_how_to_do_without_a_compiler(capsys: pytest.CaptureFixture[str]) -> None:
    from torch._dynamo.exc import BackendCompilerFailed

    error = BackendCompilerFailed("inductor", PermissionError(13, "Permission denied", "/somewhere"), None)
    assert ended(error) == 1
    said = capsys.readouterr().err
    assert said.count("\n") == 1 and "torch.compile failed" in said and "training.compile=false" in said


@pytest.mark.parametrize(
    "error",
    [
        RuntimeError("a bug\nin two lines"),
        Panic("index out of bounds"),
        RecursionError("maximum recursion depth exceeded"),
        KeyError("\x1b]0;title\x07"),
        UnicodeDecodeError("utf-8", b"\xff", 0, 1, "invalid start byte"),
        Mute(),
        ImportError("cannot import name 'x'"),
    ],
    ids=lambda error: type(error).__name__,
)
def test_guarded_turns_any_exception_into_a_sentence_and_a_file(
    error: BaseException, crashes: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    assert ended(error) == 1
    said = capsys.readouterr().err
    (file,) = crashes.glob("di4c-crash-*.txt")
    sentence(said, type(error).__name__, str(file))
    assert said.rstrip("\n").isprintable()
    assert "tests/cli/test_guard.py" in file.read_text() and type(error).__name__ in file.read_text()
    assert file.stat().st_mode & 0o077 == 0


def test_guarded_says_a_sentence_without_a_place_for_the_file(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setattr(tempfile, "tempdir", "/proc/nowhere")
    assert ended(ValueError("a bug")) == 1
    sentence(capsys.readouterr().err, "ValueError: a bug")


def test_guarded_leaves_exits_alone(capsys: pytest.CaptureFixture[str]) -> None:
    assert ended(SystemExit(7)) == 7 and ended(typer.Exit(3)) == 3
    assert capsys.readouterr().err == ""
    assert ended(KeyboardInterrupt()) == 130
    assert capsys.readouterr().err == "di4c: stopped.\n"
    assert ended(UserError("a\x1b[31m", "b\r")) == 2
    assert capsys.readouterr().err == "di4c: a\\x1b[31m b\\r\n"


def test_crash_file_holds_nothing_private(crashes: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Home, user, working folder, tokens, values of options and of the environment in the message of an error."""
    monkeypatch.setenv("HOME", "/home/wilhelmina")
    monkeypatch.setenv("HF_TOKEN", "hunter2hunter2")
    monkeypatch.setattr(
        sys, "argv", ["di4c", "sample", "--teacher", "confidential/moonshot", "--prompt=dear diary", "-n", "2"]
    )
    message = (
        f"moonshot failed in /home/wilhelmina/x at wilhelmina@host with {SECRET} hunter2hunter2 'quoted' dear: size 3"
    )
    try:
        try:
            raise ValueError(message)
        except ValueError as error:
            raise KeyError("a private name") from error
    except KeyError as error:
        text = "\n".join(crash.describe(error))
    for private in (
        "wilhelmina",
        "moonshot",
        "confidential",
        "diary",
        "dear",
        SECRET,
        "hunter2",
        "quoted",
        "private name",
    ):
        assert private not in text, text
    assert os.getcwd() not in text and str(Path(__file__).parents[2]) not in text
    assert "command: sample --teacher … --prompt=… -n …" in text
    assert "size 3" in text and "failed in" in text and "KeyError" in text and "torch " in text


def raising(error: BaseException) -> Any:
    def call(*_: object, **__: object) -> None:
        raise error

    return call


@pytest.mark.parametrize(
    ("target", "words"),
    [
        ("di4c_cli.recipe_file.find", ["recipes", "show", "digits"]),
        ("di4c_cli.recipe_file.names", ["recipes"]),
        ("di4c_cli.cli.app.emit", ["--version"]),
        ("di4c_cli.teacher.registry.entries", ["teachers"]),
        ("di4c_cli.evaluation.results.load", ["compare", "a", "b"]),
    ],
)
def test_every_command_is_guarded(
    target: str, words: list[str], crashes: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Commands, a sub-command, the callback of a group and the callback of an option."""
    monkeypatch.setattr(target, raising(Panic("native")))
    told(call(*words), 1, "Panic: native", "di4c-crash-")


def test_usage_errors_are_sentences() -> None:
    told(call("sample", "--n\x1b[31mope"), 2, "--n\\x1b[31mope", "`di4c sample --help`")
    told(call("recipes", "sh\rw"), 2, "'sh\\rw'", "`di4c recipes --help`")
    told(call("nope"), 2, "No such command 'nope'", "`di4c --help`")
    told(call("sample", "-n", "\u202e3"), 2, "'-n'")


EDGES = """
import atexit, logging, sys, threading, warnings
from di4c_cli.cli import guard
guard.prepare_process()
esc = chr(27)
warnings.warn(f"odd{esc}[31m")
logging.getLogger("library").warning("name %s", esc + "]0;x" + chr(7))
try:
    raise ValueError("logged")
except ValueError:
    logging.getLogger("library").exception("failed")
thread = threading.Thread(target=lambda: 1 / 0)
thread.start()
thread.join()
class Late:
    def __del__(self):
        raise LookupError("deleted")
Late()
atexit.register(lambda: [][1])
"""


def test_warnings_logs_threads_and_exit_handlers_are_sentences() -> None:
    done = subprocess.run([sys.executable, "-c", EDGES], capture_output=True, text=True, check=True)
    assert "Traceback" not in done.stderr and "\x1b" not in done.stderr
    lines = done.stderr.splitlines()
    assert lines[:3] == ["UserWarning: odd\\x1b[31m", "name \\x1b]0;x\\x07", "failed"]
    assert [re.findall(r"\w+Error", line)[0] for line in lines[3:]] == [
        "ZeroDivisionError",
        "LookupError",
        "IndexError",
    ]


def test_damaged_installation_is_a_sentence(tmp_path: Path) -> None:
    """A dependency that cannot be imported, before any command exists."""
    (tmp_path / "typer.py").write_text("raise ImportError('no such symbol')\n")
    path = os.pathsep.join([str(tmp_path), os.environ["PYTHONPATH"]])
    done = process("--version", PYTHONPATH=path)
    assert done.returncode == 1 and done.stdout == ""
    sentence(done.stderr, "installation", "no such symbol", "di4c-crash-")


FULL = "The output cannot be written to stdout (No space left on device)"
STREAMS = [
    ("teachers --json >/dev/full", 1, FULL),
    ("--help >/dev/full", 1, FULL),
    ("--version >&-", 1, "The output cannot be written to stdout (Bad file descriptor)"),
    ("recipes show nix 2>&-", 2, ""),
    ("recipes show nix 2>/dev/full", 2, ""),
    ("--version >&- 2>&- <&-", 1, ""),
]


@pytest.mark.parametrize("unbuffered", ["", "1"])
@pytest.mark.parametrize(("line", "code", "said"), STREAMS, ids=[line for line, _, _ in STREAMS])
def test_streams_that_cannot_be_written(line: str, code: int, said: str, unbuffered: str) -> None:
    script = f"{' '.join(command())} {line}"
    env = os.environ | {"PYTHONUNBUFFERED": unbuffered}
    done = subprocess.run(["bash", "-c", script], capture_output=True, text=True, check=False, env=env)
    assert done.returncode == code and done.stdout == "", done.stderr
    if said:
        sentence(done.stderr, said)
    else:
        assert done.stderr == ""


@pytest.mark.parametrize("encoding", ["idna", "undefined", "utf-16", "ascii", "utf-7"])
def test_strange_encodings(encoding: str) -> None:
    done = subprocess.run(
        command("recipes", "show", "größe"),
        capture_output=True,
        check=False,
        env=os.environ | {"PYTHONIOENCODING": encoding},
    )
    assert done.returncode == 2 and b"Traceback" not in done.stderr and len(done.stderr) > 20


def test_strange_widths_are_ignored() -> None:
    for width in ("abc", "0", "99999999999999"):
        done = process("recipes", "--help", COLUMNS=width, LINES=width, TERMINAL_WIDTH=width)
        assert done.returncode == 0 and done.stderr == "" and len(done.stdout) < 10_000


def test_app_is_the_only_way_to_the_commands() -> None:
    """Nothing in the package prints past the console: every other `print` would be a sink of its own."""
    package = Path(crash.__file__).parents[1]
    allowed = {"cli/console.py", "cli/guard.py", "teacher/__init__.py", "training/launch.py", "card.py"}
    allowed |= {"training/accelerate_launcher.py"}
    found = {
        str(path.relative_to(package)) for path in package.rglob("*.py") if re.search(r"\bprint\(", path.read_text())
    }
    assert found <= allowed and app.info.cls is not None


def test_command_line_is_text_whatever_was_typed() -> None:
    """It stands in results.json."""
    assert command_line("di4c", "eval", "a\udcff b") == "di4c eval 'a\\udcff b'"
