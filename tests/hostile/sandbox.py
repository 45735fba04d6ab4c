"""One command in a forked copy of this process: bounded memory, processor time and file size, everything recorded.

The process has imported torch and the package already, so a case takes a fraction of a second.
"""

from __future__ import annotations

import atexit
import ctypes
import errno
import io
import os
import pty
import resource
import signal
import stat
import sys
import tempfile
import time
import traceback
import weakref
from collections.abc import Callable
from contextlib import suppress
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import psutil

MEMORY_BYTES = 2 * 2**30
"""Memory that a case sees as the machine's, and may use beside what the imported packages take."""
SPARE_BYTES = 2**30
"""What it could use beyond that before an allocation fails, so that the use is measured and not only prevented."""
OWN_BYTES = 6 * 2**30
FILE_BYTES = 3 * 2**30
CPU_SECONDS = 30.0
WALL_SECONDS = 240.0
"""The machine may be busy: processor time is the measure, this is the end of a case that waits for ever."""
STOP_SECONDS = 25.0
"""After SIGTERM a command has so long to end; native code is given ten seconds by the command itself."""
ORPHAN_SECONDS = 5.0
BROKEN = 70
"""Exit code of a copy in which the guard let an exception pass."""
PR_SET_CHILD_SUBREAPER = 36
CHANGES = (
    "os.rename",
    "os.remove",
    "os.mkdir",
    "os.rmdir",
    "os.truncate",
    "os.link",
    "os.symlink",
    "os.chmod",
    "os.chown",
)


@dataclass
class Outcome:
    """What a command did."""

    words: list[str]
    code: int
    stdout: str
    stderr: str
    peak: int
    seconds: float
    stopped: bool
    late: bool
    terminal: bool
    left: list[str] = field(default_factory=list)
    before: dict[str, str] = field(default_factory=dict)
    after: dict[str, str] = field(default_factory=dict)


def adopt_orphans() -> None:
    """Become the parent of processes whose parent dies, so that none escapes; bound this process itself."""
    hard = resource.getrlimit(resource.RLIMIT_DATA)[1]
    resource.setrlimit(
        resource.RLIMIT_DATA, (OWN_BYTES, hard)
    )  # a bomb that is made must not take the machine's memory
    ctypes.CDLL(None).prctl(PR_SET_CHILD_SUBREAPER, 1, 0, 0, 0)


def snapshot(folder: Path) -> dict[str, str]:
    """Kind of everything below a folder; of files the size and the time of the last change, to the nanosecond."""
    found = {}
    for path in sorted(folder.rglob("*")):
        state = path.lstat()
        kind = stat.S_IFMT(state.st_mode)
        if kind == stat.S_IFREG:
            what = f"{state.st_size} {state.st_mtime_ns}"
        elif kind == stat.S_IFLNK:
            what = os.readlink(path)
        else:
            what = oct(kind)
        found[str(path.relative_to(folder))] = what
    return found


def run(
    words: list[str],
    place: Path,
    stop_after: float | None = None,
    terminal: bool = False,
    prepare: Callable[[], Any] | None = None,
) -> Outcome:
    """Run `di4c WORDS` in `place`; `stop_after` seconds later SIGTERM asks it to end."""
    for name in ("tmp", "home"):
        (place / name).mkdir(exist_ok=True)
    before = snapshot(place)
    log = Path(tempfile.mkdtemp(prefix="hostile-log-"))
    streams = [log / "stdout", log / "stderr"]
    main, side = pty.openpty() if terminal else (-1, -1)
    sys.stdout.flush()
    sys.stderr.flush()
    started = time.monotonic()
    child = os.fork()
    if child == 0:
        _case(words, place, streams, side, prepare)
    if terminal:
        os.close(side)
    status, usage, stopped, late, seen = _wait(child, started, stop_after, main)
    left = _orphans()
    if terminal:
        os.close(main)
        streams[0].write_bytes(seen)
    out, err = (path.read_bytes().decode("utf-8", "surrogateescape") if path.exists() else "" for path in streams)
    for path in streams:
        path.unlink(missing_ok=True)
    log.rmdir()
    code = -os.WTERMSIG(status) if os.WIFSIGNALED(status) else os.WEXITSTATUS(status)
    spent = usage.ru_utime + usage.ru_stime
    peak = max(0, usage.ru_maxrss * 1024 - _baseline())
    return Outcome(words, code, out, err, peak, spent, stopped, late, terminal, left, before, snapshot(place))


def _baseline() -> int:
    """Memory that a copy has at its start."""
    return int(psutil.Process().memory_info().rss)


def _wait(child: int, started: float, stop_after: float | None, main: int) -> tuple[int, Any, bool, bool, bytes]:
    """Wait for the copy: its status and use, whether it was asked to stop, whether it had to be killed, its output."""
    stopped = late = False
    deadline = started + WALL_SECONDS
    seen = b""
    if main >= 0:
        os.set_blocking(main, False)
    while True:
        if main >= 0:
            with suppress(OSError):
                while part := os.read(main, 65536):
                    seen += part
        done, status, usage = os.wait4(child, os.WNOHANG)
        if done:
            if main >= 0:
                with suppress(OSError):
                    while part := os.read(main, 65536):
                        seen += part
            return status, usage, stopped, late, seen
        now = time.monotonic()
        if stop_after is not None and not stopped and now - started > stop_after:
            stopped, deadline = True, now + STOP_SECONDS
            os.kill(child, signal.SIGTERM)
        if now > deadline:
            late = True
            os.kill(child, signal.SIGKILL)
        time.sleep(0.005)


def _orphans() -> list[str]:
    """Command lines of processes that the copy left behind, after a short while in which they may end; kills them."""
    deadline = time.monotonic() + ORPHAN_SECONDS
    while True:
        with suppress(ChildProcessError):
            while os.waitpid(-1, os.WNOHANG)[0]:
                pass
        children = psutil.Process().children()
        if not children:
            return []
        if time.monotonic() > deadline:
            break
        time.sleep(0.01)
    found = []
    for one in children:
        with suppress(psutil.Error):
            found.append(" ".join(one.cmdline())[:200])
            one.kill()
            one.wait(5)
    return found


def _case(words: list[str], place: Path, streams: list[Path], side: int, prepare: Callable[[], Any] | None) -> None:
    """The copy: never returns."""
    code = BROKEN
    try:
        os.setsid()
        atexit._clear()  # the parent's own, which delete its temporary folder
        weakref.finalize._registry.clear()  # type: ignore[attr-defined]
        weakref.finalize._registered_with_atexit = False  # type: ignore[attr-defined]
        _redirect(streams, side)
        _bound()
        _confine(place.parent)
        os.chdir(place)
        os.environ.update(HOME=str(place / "home"), TMPDIR=str(place / "tmp"), DI4C_CACHE=str(place / "home" / "cache"))
        os.environ["TORCHINDUCTOR_CACHE_DIR"] = str(place / "home" / "compiled")
        os.environ.pop("COLUMNS", None)
        tempfile.tempdir = None
        if prepare is not None:
            prepare()
        sys.argv = ["di4c", *words]
        from di4c_cli.__main__ import main

        try:
            main()
            code = 0
        except SystemExit as end:
            code = end.code if isinstance(end.code, int) else int(end.code is not None)
        atexit._run_exitfuncs()
        sys.stdout.flush()
        sys.stderr.flush()
    except BaseException:
        code = BROKEN
        with suppress(BaseException):
            os.write(2, traceback.format_exc().encode("utf-8", "backslashreplace"))
    finally:
        os._exit(code)


def _redirect(streams: list[Path], side: int) -> None:
    null = os.open(os.devnull, os.O_RDONLY)
    os.dup2(null, 0)
    for number, path in zip((1, 2), streams, strict=True):
        handle = side if side >= 0 and number == 1 else os.open(path, os.O_WRONLY | os.O_CREAT | os.O_APPEND, 0o600)
        os.dup2(handle, number)
    sys.stdin = io.TextIOWrapper(io.FileIO(0), encoding="utf-8")
    sys.stdout = sys.__stdout__ = io.TextIOWrapper(io.BufferedWriter(io.FileIO(1, "w")), encoding="utf-8")
    sys.stderr = sys.__stderr__ = io.TextIOWrapper(io.BufferedWriter(io.FileIO(2, "w")), "utf-8", line_buffering=True)
    for number in (signal.SIGTERM, signal.SIGINT):
        signal.signal(number, signal.SIG_DFL)


def _bound() -> None:
    """Limits of the copy and its children, and a machine of `MEMORY_BYTES` as the package sees it."""
    used = psutil.Process().memory_info().data
    for name, bound in (
        (resource.RLIMIT_DATA, used + MEMORY_BYTES + SPARE_BYTES),
        (resource.RLIMIT_FSIZE, FILE_BYTES),
        (resource.RLIMIT_CPU, int(3 * CPU_SECONDS)),
        (resource.RLIMIT_CORE, 0),
    ):
        resource.setrlimit(name, (bound, bound))
    ask = os.sysconf
    pages = MEMORY_BYTES // ask("SC_PAGE_SIZE")
    os.sysconf = lambda name: pages if name in ("SC_PHYS_PAGES", "SC_AVPHYS_PAGES") else ask(name)  # type: ignore[assignment]


def _confine(folder: Path) -> None:
    """Forbid changes of files elsewhere, as permissions forbid them to an ordinary user; the round may run as root."""
    inside = (os.path.realpath(folder) + os.sep, "/dev/null", "/dev/full", "/proc/self/")

    def audit(event: str, args: tuple[Any, ...]) -> None:
        if event == "open":
            touched = args[:1] if isinstance(args[2], int) and args[2] & (os.O_WRONLY | os.O_RDWR | os.O_CREAT) else ()
        else:
            touched = args[: {"os.rename": 2, "os.link": 2}.get(event, 1)] if event in CHANGES else ()
        for path in touched:
            if isinstance(path, (str, bytes, os.PathLike)):
                real = os.path.realpath(os.fsdecode(path)) + (os.sep if event != "open" else "")
                if not real.startswith(inside):
                    raise PermissionError(errno.EACCES, "Permission denied", os.fsdecode(path))

    sys.addaudithook(audit)
