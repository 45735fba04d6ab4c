"""Small runs whose weights are divided over processes by Accelerate's own FSDP2, on the CPU.

    python -m tests.helpers.sharded_run OUT

OUT/fp32 is trained, cut back to an earlier checkpoint and resumed; OUT/bf16 makes one step; OUT/dtypes.json has the
dtypes of their losses. Accelerate offers FSDP only on GPUs and silently does without it on CPUs. Here the plugin is
made as `accelerate launch` makes it from the shipped preset, and the accelerator is told that it is one of FSDP.
"""

from __future__ import annotations

import json
import os
import shutil
import sys
from pathlib import Path
from typing import Any, ClassVar

import torch
from accelerate import Accelerator, DistributedType
from accelerate.commands.launch import _validate_launch_command, launch_command_parser
from accelerate.state import AcceleratorState, PartialState
from accelerate.utils import FullyShardedDataParallelPlugin
from accelerate.utils.launch import prepare_multi_gpu_env
from torch.distributed.fsdp import FSDPModule

from di4c_cli import recipe_file
from di4c_cli.recipe import Recipe
from di4c_cli.training import processes, run
from di4c_cli.training.launch import preset
from di4c_cli.training.loop import TrainingLoop
from di4c_cli.training.metrics import StepMetrics

STEPS = 3


def recipe(steps: int, precision: str = "fp32") -> Recipe:
    """The embedded DiT with 4 samples and 4 latents."""
    values = {"iterations": steps, "batch": 4, "checkpoint_every": 2, "precision": precision}
    return recipe_file.read("di4c/words", {f"training.{k}": v for k, v in values.items()} | {"method.latents": 4})


def plugin() -> FullyShardedDataParallelPlugin:
    """FSDP2 as the shipped preset configures it."""
    args, *_ = _validate_launch_command(
        launch_command_parser().parse_args(["--config_file", str(preset("fsdp2")), "-"])
    )
    os.environ |= {key: value for key, value in prepare_multi_gpu_env(args).items() if key.startswith("FSDP_")}
    return FullyShardedDataParallelPlugin()


def sharded(**options: Any) -> Accelerator:
    """An accelerator that takes the FSDP path."""
    accelerator = Accelerator(**options)
    accelerator.state.fsdp_plugin = plugin()
    if options["mixed_precision"] != "no":
        accelerator.state.fsdp_plugin.set_mixed_precision(options["mixed_precision"])
    for state in (AcceleratorState, PartialState):
        state._shared_state["distributed_type"] = DistributedType.FSDP
    assert accelerator.is_fsdp2
    return accelerator


class CheckedLoop(TrainingLoop):
    """Insists on shards and notes the dtype of the loss."""

    dtypes: ClassVar[dict[str, str]] = {}

    def run(self) -> None:
        assert isinstance(self.module, FSDPModule), "the weights are not sharded"
        super().run()

    def _backward(self, part: int) -> StepMetrics:
        precision = self.recipe.training.precision
        self.module.register_forward_hook(lambda _, __, out: self.dtypes.update({precision: str(out[0].dtype)}))
        return super()._backward(part)


def main(out: str) -> None:
    processes.Accelerator = sharded  # type: ignore[assignment, misc]
    run.TrainingLoop = CheckedLoop  # type: ignore[misc]
    fp32, bf16 = Path(out) / "fp32", Path(out) / "bf16"
    run.distill(recipe(STEPS), fp32, run.RunOptions(keep_group=True))
    if os.environ["RANK"] == "0":
        shutil.copy(fp32 / "metrics.jsonl", out)
        for name in ("student", "round-1/student", f"round-1/checkpoints/step-{STEPS:08d}"):
            shutil.rmtree(fp32 / name)
    torch.distributed.barrier()
    run.distill(recipe(STEPS), fp32, run.RunOptions(keep_group=True))
    run.distill(recipe(1, "bf16"), bf16, run.RunOptions())
    if os.environ["RANK"] == "0":
        (Path(out) / "dtypes.json").write_text(json.dumps(CheckedLoop.dtypes))


if __name__ == "__main__":
    main(*sys.argv[1:])
