"""The division of a global batch over processes and backward passes."""

from __future__ import annotations

import math
from dataclasses import dataclass

from di4c_cli.errors import UserError
from di4c_cli.training.pretrain_config import RunRecipe


@dataclass(frozen=True)
class BatchPlan:
    """`batch` samples an iteration = `processes` / `group` x `passes` x `micro`."""

    batch: int
    processes: int
    passes: int
    micro: int
    group: int = 1
    """Processes that divide the latents of the same samples among them."""

    def starts(self, step: int, rank: int) -> list[int]:
        """First sample number of each backward pass of process `rank` in iteration `step` (from 0).

        The samples of a group are consecutive; together the groups cover step * batch … (step + 1) * batch - 1.
        """
        first = step * self.batch + rank // self.group * self.micro * self.passes
        return [first + number * self.micro for number in range(self.passes)]


def make_batch_plan(batch: int, micro_batch: int | None, processes: int, latents: int = 1) -> BatchPlan:
    """Divide the batch evenly, because every sample has the same weight.

    If it cannot be divided, groups of processes divide the `latents` of each sample.
    """
    groups = math.gcd(batch, processes)
    if latents % (processes // groups):
        more = -(-batch // processes) * processes
        raise UserError(
            f"A batch of {batch} cannot be divided over {processes} processes.",
            f"Use --batch {more} or another number of processes.",
        )
    share = batch // groups
    micro = min(micro_batch or share, share)
    if share % micro:
        fits = max(size for size in range(1, micro + 1) if share % size == 0)
        raise UserError(
            f"training.micro_batch {micro} does not divide the {share} samples of each process.",
            f"Use --set training.micro_batch={fits}.",
        )
    return BatchPlan(batch, processes, share // micro, micro, processes // groups)


def recipe_plan(recipe: RunRecipe, processes: int) -> BatchPlan:
    """The division of a recipe's batch."""
    training = recipe.training
    return make_batch_plan(training.batch, training.micro_batch, processes, recipe.method.divisible_latents)
