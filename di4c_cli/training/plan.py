"""The division of a global batch over processes and backward passes."""

from __future__ import annotations

from dataclasses import dataclass

from di4c_cli.errors import UserError


@dataclass(frozen=True)
class BatchPlan:
    """`batch` samples an iteration = `processes` x `passes` x `micro`."""

    batch: int
    processes: int
    passes: int
    micro: int

    def starts(self, step: int, rank: int) -> list[int]:
        """First sample number of each backward pass of process `rank` in iteration `step` (from 0).

        The samples of a process are consecutive; together the processes cover step * batch … (step + 1) * batch - 1.
        """
        first = step * self.batch + rank * self.micro * self.passes
        return [first + number * self.micro for number in range(self.passes)]


def make_batch_plan(batch: int, micro_batch: int | None, processes: int) -> BatchPlan:
    """Divide the batch evenly, because every sample has the same weight."""
    if batch % processes:
        more = -(-batch // processes) * processes
        raise UserError(
            f"A batch of {batch} cannot be divided over {processes} processes.",
            f"Use --batch {more} or another number of processes.",
        )
    share = batch // processes
    micro = min(micro_batch or share, share)
    if share % micro:
        fits = max(size for size in range(1, micro + 1) if share % size == 0)
        raise UserError(
            f"training.micro_batch {micro} does not divide the {share} samples of each process.",
            f"Use --set training.micro_batch={fits}.",
        )
    return BatchPlan(batch, processes, share // micro, micro)
