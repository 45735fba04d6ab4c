"""Many mutants in one pytest session: tests are imported and collected once, each mutant lives in a fork of that state.

First every test runs on the true code, which shows how much processor time it takes and which functions it calls. A
mutant then replaces the code of its function in a fork, and only the tests that call this function run there, the
quickest first. What a fork cannot show, a change outside functions or to a function that importing and collecting
already called, is left to a fresh process (`COLD`).
"""

from __future__ import annotations

import gc
import itertools
import os
import pickle
import resource
import signal
import sys
import time
import traceback
from collections.abc import Callable, Iterable
from dataclasses import dataclass
from multiprocessing.queues import SimpleQueue
from pathlib import Path
from types import CodeType, FrameType, FunctionType

import pytest

from tools.mutation.mutants import Mutant

Function = tuple[str, str, int]
"""File, name and first line."""
COLD = "cold"
STATUS = {0: "survived", 1: "killed", 3: COLD}
BROKEN = 4
MEMORY = 12 << 30


@dataclass(frozen=True)
class Test:
    """What the true code showed of a test."""

    name: str
    seconds: float
    calls: frozenset[Function]


def limit(seconds: float) -> None:
    """End this process after so much processor time, however busy the machine; keep it from eating the memory."""
    resource.setrlimit(resource.RLIMIT_CPU, (int(seconds) + 1, int(seconds) + 5))
    resource.setrlimit(resource.RLIMIT_AS, (MEMORY, MEMORY))


def replace(mutant: Mutant) -> bool:
    """Give the mutant's code to its function, wherever that is referred to; False if there is no such function."""
    function = mutant.function()
    if function is None:
        return False
    whole = compile(mutant.tree(), str(mutant.path), "exec")
    new = next(code for code in _codes(whole) if (code.co_name, code.co_firstlineno) == function)
    place = (str(mutant.path), *function)
    # not isinstance: some objects of torch answer that with a warning
    found = [one for one in gc.get_objects() if type(one) is FunctionType and _place(one.__code__) == place]
    for one in found:
        one.__code__ = new
    return bool(found)


def _codes(code: CodeType) -> Iterable[CodeType]:
    for inner in code.co_consts:
        if isinstance(inner, CodeType):
            yield inner
            yield from _codes(inner)


def _place(code: CodeType) -> Function:
    return code.co_filename, code.co_name, code.co_firstlineno


def affordable(tests: list[Test], effort: float) -> list[Test]:
    """The first tests that together take at most `effort` seconds of processor time; at least one."""
    spent = itertools.accumulate(test.seconds for test in tests)
    return [test for test, total in zip(tests, spent) if total <= effort] or tests[:1]


class Calls:
    """Notes which functions of some files are called."""

    def __init__(self, root: Path) -> None:
        self.root, self.seen = str(root), set[Function]()

    def __call__(self, frame: FrameType, event: str, argument: object) -> None:
        if frame.f_code.co_filename.startswith(self.root):
            self.seen.add(_place(frame.f_code))


class Warm:
    """The plugin; `tell` hears of the tests, then of each mutant with its outcome and seconds."""

    def __init__(
        self,
        work: list[tuple[Mutant, tuple[str, ...]]],
        jobs: int,
        factor: float,
        effort: float,
        measured: Path,
        calls: Calls,
        tell: Callable[[object], None],
    ) -> None:
        self.work, self.jobs, self.factor, self.effort, self.place = work, jobs, factor, effort, measured
        self.calls, self.tell = calls, tell
        self.running: dict[int, tuple[Mutant, float]] = {}

    @pytest.hookimpl(tryfirst=True)
    def pytest_runtestloop(self, session: pytest.Session) -> bool:
        """Instead of running the tests: try the mutants."""
        sys.settrace(None)
        self.early = frozenset(self.calls.seen)
        if session.testsfailed:
            self.tell(None)
            return True
        self.items = {item.nodeid: item for item in session.items}
        tests = self.measured(session)
        self.tell(tests)
        for mutant, paths in self.work if tests else []:
            while len(self.running) >= self.jobs:
                self.reap()
            self.start(session, mutant, [test for test in tests or [] if test.name.startswith(paths)])
        while self.running:
            self.reap()
        return True

    def measured(self, session: pytest.Session) -> list[Test] | None:
        """Every test on the true code, in a fork, since autograd cannot be used before one; quickest first."""
        known: list[Test] = pickle.loads(self.place.read_bytes()) if self.place.exists() else []
        tests = [test for test in known if test.name in self.items]
        missing = [name for name in self.items if name not in {test.name for test in tests}]
        pid = os.fork()
        if pid == 0:
            for name in missing:
                self.calls.seen.clear()
                sys.settrace(self.calls)
                start = time.process_time()
                self.run(session, [name])
                seconds = time.process_time() - start
                sys.settrace(None)
                if session.testsfailed:
                    os._exit(1)
                tests.append(Test(name, seconds, frozenset(self.calls.seen)))
                self.place.write_bytes(pickle.dumps(sorted(tests, key=lambda test: test.seconds)))
            os._exit(0)
        _, status = os.waitpid(pid, 0)
        return None if status else pickle.loads(self.place.read_bytes())

    def run(self, session: pytest.Session, names: list[str]) -> None:
        """Some tests, up to the first failure."""
        items = [self.items[name] for name in names]
        for item, following in zip(items, [*items[1:], None]):
            item.config.hook.pytest_runtest_protocol(item=item, nextitem=following)
            if session.testsfailed:
                return

    def start(self, session: pytest.Session, mutant: Mutant, tests: list[Test]) -> None:
        """A fork with the mutant in it."""
        place = (str(mutant.path), *(mutant.function() or ("", 0)))
        mine = affordable([test for test in tests if place in test.calls], self.effort)
        pid = os.fork()
        if pid:
            self.running[pid] = (mutant, time.monotonic())
            return
        try:
            if not replace(mutant):
                os._exit(3)
            limit(self.factor * sum(test.seconds for test in mine) + 3)
        except BaseException:
            traceback.print_exc()
            os._exit(BROKEN)
        try:
            self.run(session, [test.name for test in mine])
        except BaseException:
            os._exit(1)
        os._exit(1 if session.testsfailed else 3 if place in self.early else 0)

    def reap(self) -> None:
        """Wait for one fork and tell what became of it."""
        pid, status = os.wait()
        mutant, start = self.running.pop(pid)
        if os.WIFSIGNALED(status):
            outcome = "timeout" if os.WTERMSIG(status) in (signal.SIGXCPU, signal.SIGKILL) else "killed"
        elif os.WEXITSTATUS(status) == BROKEN:
            raise RuntimeError(f"{mutant} could not be made")
        else:
            outcome = STATUS[os.WEXITSTATUS(status)]
        self.tell((mutant, outcome, time.monotonic() - start))


def serve(
    root: Path,
    words: list[str],
    work: list[tuple[Mutant, tuple[str, ...]]],
    jobs: int,
    factor: float,
    effort: float,
    measured: Path,
    told: SimpleQueue[object],
) -> None:
    """In a process of its own: the session; the queue hears of the tests, or None if they fail, then of each mutant.

    `work` names for each mutant the paths of its tests, `measured` is the file that keeps what the true code showed.
    """
    os.chdir(root)
    os.environ |= {"PYTHONPATH": str(root), "HYPOTHESIS_STORAGE_DIRECTORY": str(measured) + ".hypothesis"}
    sys.path.insert(0, str(root))
    os.dup2(os.open(os.devnull, os.O_WRONLY), 1)
    import torch

    torch.set_num_threads(1)
    # what torch imports at first use would cost every fork more than most tests
    torch.testing.assert_close(torch.ones(1), torch.ones(1))
    torch.optim.Adam([torch.nn.Parameter(torch.ones(1))])
    calls = Calls(root / "di4c_cli")
    sys.settrace(calls)
    plugin = Warm(work, jobs, factor, effort, measured, calls, told.put)
    pytest.main(["-q", "-n", "0", "-p", "no:cacheprovider", *words], plugins=[plugin])
