"""The edge of every command: any exception becomes one sentence and an exit code, and no stream can fail.

Imports the standard library only, so that a damaged installation gets its sentence too.
"""

from __future__ import annotations

import errno
import functools
import io
import logging
import os
import select
import sys
import threading
import warnings
from collections.abc import Callable, Iterator
from contextlib import contextmanager, suppress
from typing import Any, ParamSpec

from di4c_cli.errors import SENTENCE_LIMIT, Di4cError, Failure, NameWarning, UserError, first_line
from di4c_cli.printable import printable

Arguments = ParamSpec("Arguments")
WIDTH_VARIABLES = ("COLUMNS", "LINES", "TERMINAL_WIDTH")
MAX_WIDTH = 10_000


class Ended(SystemExit):
    """The end of a command whose sentence has been printed."""


@contextmanager
def edge() -> Iterator[None]:
    """Turn any exception of the block, native ones included, into one sentence and an exit code."""
    destination = stdout_destination()
    try:
        yield
    except Ended:
        raise
    except SystemExit:
        # Rich redirects stdout and ends with 1 when a reader (`head`) has closed the pipe: that is no failure
        if stdout_destination() != destination:
            raise Ended(0) from None
        raise
    except KeyboardInterrupt:
        tell("di4c: stopped.")
        raise Ended(130) from None
    except BaseException as error:
        raise Ended(explain(error)) from None


def guarded(command: Callable[Arguments, None]) -> Callable[Arguments, None]:
    """A function that runs inside `edge`."""

    @functools.wraps(command)
    def run(*args: Arguments.args, **options: Arguments.kwargs) -> None:
        with edge():
            command(*args, **options)

    return run


def explain(error: BaseException) -> int:
    """Print the sentence of an error and return its exit code."""
    if type(error).__name__ == "Exit" and hasattr(error, "exit_code"):  # Typer's way to end; it may not be installed
        return int(error.exit_code)
    if isinstance(error, OSError) and (fault := stdout_fault(error)) is not None:
        drop(sys.stdout)
        if isinstance(fault, BrokenPipeError):
            return 0
        message = f"The output cannot be written to stdout ({fault.strerror})."
        found: Di4cError = Failure(message, "Redirect it to another place.")
    else:
        found = as_di4c_error(error)
    if found.message:  # an error without words was printed by another process
        tell(f"di4c: {found}")
    return found.exit_code


def as_di4c_error(error: BaseException) -> Di4cError:
    """An error of any kind as ours; one that nobody expected is described in a crash file."""
    if isinstance(error, Di4cError):
        return error
    if hasattr(error, "format_message"):  # a mistake in the command line, found by Typer
        return _usage_error(error)
    if isinstance(error, OSError):
        return machine_fault(error)
    shortage = memory_fault(error)
    if shortage is not None:
        return shortage
    said = first_line(error)
    if any(kind.__name__ == "TorchDynamoException" for kind in type(error).__mro__):  # no compiler, no folder for it
        return Failure(f"torch.compile failed: {said}.", "Train with --set training.compile=false.")
    if isinstance(error, ImportError):
        return Failure(f"The installation of di4c is damaged: {said}.", f"Install it again.{_details(error)}")
    return Failure(f"Unexpected error, probably a bug in di4c: {said}.", _details(error).strip())


def _details(error: BaseException) -> str:
    from di4c_cli.cli.crash import write_crash_file  # imports much, and is rarely needed

    path = write_crash_file(error)
    return "" if path is None else f" A description without private data for a bug report is in {path}."


def _usage_error(error: Any) -> Di4cError:
    """Typer's message on one line, and where to look; without words if the help has just been printed."""
    if type(error).__name__ == "NoArgsIsHelpError":
        return UserError("")
    names: list[str] = []
    context = getattr(error, "ctx", None)
    while context is not None and context.parent is not None:
        names.insert(0, context.info_name)
        context = context.parent
    message = " ".join(str(error.format_message()).split("\n")).strip()
    message += "" if message.endswith((".", "?")) else "."
    return UserError(message, f"`{' '.join(['di4c', *names])} --help` lists the options.")


def machine_fault(error: OSError) -> Failure:
    """An error of the operating system as one sentence with the next thing to do."""
    what = str(error.filename or "A file")
    if error.errno in (errno.ENOSPC, errno.EDQUOT, errno.EFBIG):
        return Failure(f"The disk is full ({what}).", "Free space and run the same command again.")
    if error.errno in (errno.EACCES, errno.EPERM, errno.EROFS):
        return Failure(f"{what} cannot be accessed ({error.strerror}).", "Choose another folder or file.")
    if error.errno == errno.ENOENT:
        return Failure(f"{what} does not exist.", "Check the path; if it was deleted, put it back and run again.")
    where = f" ({error.filename})" if error.filename else ""
    return Failure(f"{error.strerror or first_line(error)}{where}.", "Choose another folder or file.")


MEMORY_ERROR_DEVICES = {"DefaultCPUAllocator": "the CPU", "MPS backend": "mps", "CUDA": "cuda", "HIP": "cuda"}
"""Words of torch's messages, and the device that each names."""


def memory_fault(error: BaseException) -> Failure | None:
    """The error if memory ran out, recognised by its words without importing torch; None for other errors."""
    if not isinstance(error, (MemoryError, RuntimeError)):
        return None
    said = str(error)
    named = type(error).__name__ == "OutOfMemoryError" or "out of memory" in said
    if not (isinstance(error, MemoryError) or named or "DefaultCPUAllocator: can't allocate" in said):
        return None
    place = next((device for word, device in MEMORY_ERROR_DEVICES.items() if word in said), "the CPU")
    return Failure(
        f"Out of memory on {place}.",
        "Train with --micro-batch 1, sample with a smaller --batch-size; `di4c distill --dry-run` estimates the need.",
    )


def tell(line: str, limit: int | None = SENTENCE_LIMIT) -> None:
    """Print a line on stderr; a run does not stop because nobody can read its messages."""
    if sys.stderr is None:  # print would then write to stdout
        return
    try:
        print(printable(line, limit), file=sys.stderr, flush=True)
    except (OSError, ValueError):
        drop(sys.stderr)


def drop(stream: Any) -> None:
    """Redirect a stream that cannot be written, so that the flush at exit does not fail."""
    with suppress(OSError, ValueError, AttributeError):
        os.dup2(os.open(os.devnull, os.O_WRONLY), stream.fileno())


def stdout_fault(error: OSError) -> OSError | None:
    """The error if stdout cannot be written; None if another file or a connection failed."""
    if error.filename is not None:
        return None
    try:
        sys.stdout.flush()  # what could not be written is still in the buffer, if there is one
        os.write(sys.stdout.fileno(), b"")
        watcher = select.poll()
        watcher.register(sys.stdout.fileno(), 0)
        gone = isinstance(error, BrokenPipeError) and any(event & select.POLLERR for _, event in watcher.poll(0))
        return error if gone else None
    except OSError as fault:
        return None if isinstance(fault, io.UnsupportedOperation) else fault  # not a file, as in tests
    except (ValueError, AttributeError):
        return None


def flush_output() -> int:
    """Write what is buffered at the end of a command; returns 1 if that fails and nothing else was said."""
    try:
        sys.stdout.flush()
    except OSError as error:
        return explain(error)
    except (ValueError, AttributeError):  # closed by a library
        pass
    return 0


def stdout_destination() -> tuple[int, int] | None:
    """Device and inode of stdout."""
    try:
        found = os.fstat(sys.stdout.fileno())
    except (OSError, ValueError, AttributeError):  # closed, or not a file
        return None
    return found.st_dev, found.st_ino


def prepare_process() -> None:
    """Open closed streams, settle their encodings, and route warnings, logs, threads and exit handlers to `tell`."""
    _open_closed_streams()
    for stream in (sys.stdout, sys.stderr):
        if isinstance(stream, io.TextIOWrapper):
            _settle(stream)
    for name in WIDTH_VARIABLES:  # Rich reserves memory for any width, Typer stops at a word
        value = os.environ.get(name, "1")
        if not (value.isdecimal() and value.isascii() and 0 < int(value[:9]) <= MAX_WIDTH):
            del os.environ[name]
    warnings.formatwarning = _warning_line
    logging.setLogRecordFactory(PrintableRecord)
    # without a home directory matplotlib warns about its temporary folder
    logging.getLogger("matplotlib").setLevel(logging.ERROR)
    sys.excepthook = lambda kind, error, trace: _background_error(error)
    threading.excepthook = lambda given: _background_error(given.exc_value)
    sys.unraisablehook = lambda given: _background_error(given.exc_value)


def _warning_line(message: Warning | str, category: type[Warning], *_: Any, **__: Any) -> str:
    """A warning of any library on one line."""
    kind = "" if issubclass(category, NameWarning) else f"{category.__name__}: "
    return f"{kind}{printable(message)}\n"


def _open_closed_streams() -> None:
    """Give closed descriptors to the null device: the next file would get the number and the output of libraries."""
    # stdout is opened for reading, so that a result that cannot be printed is still an error
    for number, mode in enumerate((os.O_RDONLY, os.O_RDONLY, os.O_WRONLY)):
        try:
            os.fstat(number)
        except OSError:
            os.open(os.devnull, mode)
    for number, name in enumerate(("stdout", "stderr"), 1):
        if getattr(sys, name) is None:
            setattr(sys, name, os.fdopen(number, "w", encoding="utf-8", closefd=False))


def _settle(stream: io.TextIOWrapper) -> None:
    """Print characters that the encoding lacks as escapes: λ in ASCII, invalid file names in UTF-8."""
    stream.reconfigure(errors="backslashreplace")
    try:
        "aλ".encode(stream.encoding, "backslashreplace")
    except (UnicodeError, LookupError):  # codecs such as `idna` and `undefined`
        stream.reconfigure(encoding="utf-8", errors="backslashreplace")


class PrintableRecord(logging.LogRecord):
    """A log message of any library on one line, without its traceback."""

    def __init__(self, *args: Any, **options: Any) -> None:
        super().__init__(*args, **options)
        self.exc_info = self.stack_info = None

    def getMessage(self) -> str:
        """The message with its arguments."""
        return printable(super().getMessage())


def _background_error(error: BaseException | None) -> None:
    """An exception in a thread, in an exit handler or while an object is deleted."""
    if error is not None and not isinstance(error, (KeyboardInterrupt, SystemExit)):
        explain(error)
