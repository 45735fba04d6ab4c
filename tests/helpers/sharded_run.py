"""A small run whose weights are divided over processes by FSDP2 on the CPU.

    python -m tests.helpers.sharded_run TEACHER OUT STEPS

Accelerate itself has FSDP only for GPUs; here its part of the work, `prepare` and `clip_grad_norm_`, is done by
hand, so that everything of ours that meets shards (loss, averages, checkpoints) runs on them.
"""

from __future__ import annotations

import sys
from pathlib import Path
from typing import Any

import torch
from accelerate import Accelerator, DistributedType
from torch.distributed.fsdp import fully_shard

from di4c_cli.training.run import RunOptions, distill
from tests.helpers.small_run import small_recipe


def prepare(self: Accelerator, module: torch.nn.Module, optimizer: torch.optim.Optimizer) -> Any:
    """FSDP2 with one group, as in the shipped preset, and an optimizer over the shards."""
    self.state.distributed_type = DistributedType.FSDP
    fully_shard(module, reshard_after_forward=False)
    return module, type(optimizer)(module.parameters(), **optimizer.defaults)


def clip(self: Accelerator, parameters: Any, limit: float) -> Any:
    return torch.nn.utils.clip_grad_norm_(parameters, limit)


def main(teacher: str, out: str, steps: str) -> None:
    Accelerator.prepare, Accelerator.clip_grad_norm_ = prepare, clip  # type: ignore[method-assign]
    Accelerator.unwrap_model = lambda self, module, **_: module  # type: ignore[method-assign]
    recipe = small_recipe(teacher, training__iterations=int(steps))
    distill(recipe, Path(out), RunOptions(dtype=torch.float64))


if __name__ == "__main__":
    main(*sys.argv[1:])
