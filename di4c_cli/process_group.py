"""The processes that divide the sampling and the evaluation of one command.

Samples depend on their numbers alone, so any process may draw any of them. A command without a launcher is a group of
one process, for which Accelerate is not imported.
"""

from __future__ import annotations

import os
from collections.abc import Callable, Iterator, Sequence
from contextlib import ExitStack, contextmanager
from pathlib import Path
from typing import TYPE_CHECKING, TypeVar

from di4c_cli import files
from di4c_cli.errors import Failure
from di4c_cli.generate.request import choose_device
from di4c_cli.training.launch import check_launcher_variables, launched

if TYPE_CHECKING:
    from accelerate import Accelerator

Value = TypeVar("Value")


class ProcessGroup:
    """One process, which does all the work."""

    rank, size = 0, 1

    def __init__(self, device: str = "cpu") -> None:
        self.device = device

    @property
    def main(self) -> bool:
        """Whether this process prints and writes the results."""
        return self.rank == 0

    def on_main(self, action: Callable[[], Value]) -> Value:
        """Run an action in the main process only and give its result, or its error, to all."""
        return action()

    @contextmanager
    def locked(self, folder: Path) -> Iterator[None]:
        """Keep other commands from writing to a folder."""
        with ExitStack() as stack:
            self.on_main(lambda: stack.enter_context(files.lock(folder)))
            yield

    def gather(self, value: Value) -> list[Value]:
        """The values of all processes, in the order of their ranks; every process waits for the others."""
        return [value]

    def share(self, items: Sequence[Value], cost: Callable[[Value], float] = lambda item: 1.0) -> list[Value]:
        """The items of this process, in their order; every item belongs to one process, and the costs are balanced."""
        loads, own = [0.0] * self.size, []
        for number in sorted(range(len(items)), key=lambda number: -cost(items[number])):
            rank = loads.index(min(loads))
            loads[rank] += cost(items[number])
            if rank == self.rank:
                own.append(number)
        return [items[number] for number in sorted(own)]


ALONE = ProcessGroup()


class LaunchedGroup(ProcessGroup):
    """The processes that a launcher started."""

    def __init__(self, accelerator: Accelerator) -> None:
        super().__init__(str(accelerator.device))
        self.accelerator = accelerator
        self.rank, self.size = accelerator.process_index, accelerator.num_processes

    def on_main(self, action: Callable[[], Value]) -> Value:
        from di4c_cli.training.processes import on_main  # imports Accelerate

        return on_main(self.accelerator, action)

    def gather(self, value: Value) -> list[Value]:
        from accelerate.utils import gather_object  # slow; one process does without it

        return list(gather_object([value]))


@contextmanager
def process_group(device: str | None) -> Iterator[ProcessGroup]:
    """The group that this process belongs to, on its share of the devices."""
    check_launcher_variables()
    if not launched():
        yield ProcessGroup(choose_device(device))
        return
    # as above
    from di4c_cli.training.processes import check_processes, leaving_process_group, lost_contact, make_accelerator

    check_processes(int(os.environ.get("LOCAL_WORLD_SIZE", "1")), device, oversubscribe=True)
    accelerator = make_accelerator("fp32", device, (), Path())
    with leaving_process_group():
        try:
            yield LaunchedGroup(accelerator)
        except RuntimeError as error:
            if accelerator.num_processes == 1 or not lost_contact(error):
                raise
            problem = "Another process of this command ended; what is finished is kept."
            raise Failure(problem, "Run the same command again to resume.") from error
        accelerator.end_training()
