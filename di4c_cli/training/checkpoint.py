"""Checkpoints: weights, EMA, optimizer and position, in a folder that is written completely or not at all."""

from __future__ import annotations

import errno
import json
import pickle
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

import torch
from accelerate import Accelerator, DistributedType
from accelerate.utils import broadcast_object_list
from safetensors import SafetensorError
from safetensors.torch import load_file, save_file
from torch import Tensor, nn

from di4c_cli import files
from di4c_cli.errors import Failure
from di4c_cli.network.lora import frozen_names, trained_state
from di4c_cli.training.ema import Ema
from di4c_cli.training.run_folder import CHECKPOINT_PREFIX, checkpoint_folders

BEST_FILE = "best.safetensors"
READ_ERRORS = (OSError, EOFError, RuntimeError, ValueError, KeyError, TypeError)
"""Exceptions of the readers for a truncated or altered file."""


@dataclass
class Progress:
    """Position of a round. All draws are keyed by sample number, so `step` is also the position in the data."""

    round: int
    step: int = 0
    skipped: int = 0
    bad_in_a_row: int = 0
    seconds: float = 0.0
    best_step: int = 0
    """Step of the lowest held-out loss, `best_loss`; 0 before the first evaluation."""
    best_loss: float | None = None
    stale: int = 0
    """Evaluations since the best one."""

    def evaluated(self, loss: float | None) -> bool:
        """Record the held-out loss of the present step; true if it is the lowest so far."""
        best = loss is not None and (self.best_loss is None or loss < self.best_loss)
        if best:
            self.best_step, self.best_loss = self.step, loss
        self.stale = 0 if best else self.stale + 1
        return best


@dataclass
class CheckpointedObjects:
    """The objects a checkpoint covers, as Accelerate prepared them."""

    accelerator: Accelerator
    module: nn.Module
    optimizer: Any
    ema: Ema
    best: dict[str, Tensor] | None = None
    """Averaged weights with the lowest held-out loss, if there is held-out data."""

    @property
    def inner_optimizer(self) -> torch.optim.Optimizer:
        """Torch's optimizer under Accelerate's wrapper."""
        inner: torch.optim.Optimizer = getattr(self.optimizer, "optimizer", self.optimizer)
        return inner

    @property
    def by_engine(self) -> bool:
        """Whether DeepSpeed holds weights and optimizer and writes them in its own format."""
        return bool(self.accelerator.distributed_type == DistributedType.DEEPSPEED)

    @property
    def sharded(self) -> bool:
        """Whether FSDP shards the weights, so that no process has all of them."""
        return bool(self.accelerator.distributed_type == DistributedType.FSDP)

    def states(self) -> tuple[dict[str, Any], Any]:
        """Unsharded weights and optimizer state, independent of the number of processes."""
        if not self.sharded:
            module = self.accelerator.unwrap_model(self.module)
            return trained_state(module), self.inner_optimizer.state_dict()
        # imported here: only FSDP needs it, and it takes a second
        from torch.distributed.checkpoint.state_dict import StateDictOptions, get_state_dict

        options = StateDictOptions(full_state_dict=True, cpu_offload=True)
        weights, optimizer = get_state_dict(self.module, self.inner_optimizer, options=options)
        return dict(weights), optimizer

    def load_states(self, weights: dict[str, Any], optimizer: Any) -> None:
        """Load weights and optimizer state, sharded as the module is now."""
        if not self.sharded:
            module = self.accelerator.unwrap_model(self.module)
            module.load_state_dict({**module.state_dict(), **weights} if frozen_names(module) else weights)
            self.inner_optimizer.load_state_dict(optimizer)
            return
        from torch.distributed.checkpoint.state_dict import StateDictOptions, set_state_dict  # as above

        options = StateDictOptions(full_state_dict=True)
        set_state_dict(
            self.module, self.inner_optimizer, model_state_dict=weights, optim_state_dict=optimizer, options=options
        )


def save(root: Path, progress: Progress, trained: CheckpointedObjects, keep: int) -> Path:
    """Write a checkpoint and delete all but the last `keep`. Every process must call this."""
    target = root / f"{CHECKPOINT_PREFIX}{progress.step:08d}"
    accelerator = trained.accelerator
    average = trained.ema.tensors()
    weights, optimizer = ({}, {}) if trained.by_engine else trained.states()
    with _shared_folder(target, accelerator) as part:
        if trained.by_engine:
            accelerator.save_state(str(part))
        if accelerator.is_main_process:
            if not trained.by_engine:
                save_file({name: value.contiguous() for name, value in weights.items()}, part / "model.safetensors")
                scaler = None if accelerator.scaler is None else accelerator.scaler.state_dict()
                torch.save({"optimizer": optimizer, "scaler": scaler}, part / "optimizer.pt")
            save_file(average, part / "ema.safetensors")
            if trained.best is not None:
                save_file(trained.best, part / BEST_FILE)
            state = asdict(progress) | {"ema_updates": trained.ema.updates}
            (part / "state.json").write_text(json.dumps(state) + "\n")
    if accelerator.is_main_process:
        for old in checkpoint_folders(root)[:-keep]:
            files.remove_folder(old)
    return target


@contextmanager
def _shared_folder(target: Path, accelerator: Accelerator) -> Iterator[Path]:
    """One new folder for all processes; the main process creates it and renames it when all have written."""
    if not accelerator.is_main_process:
        (name,) = broadcast_object_list([""])
        yield Path(name)
        accelerator.wait_for_everyone()
        return
    with files.new_folder(target) as part:
        broadcast_object_list([str(part)])
        yield part
        accelerator.wait_for_everyone()


def load(folder: Path, trained: CheckpointedObjects) -> Progress:
    """Load a checkpoint. Every process must call this."""
    try:
        state = json.loads((folder / "state.json").read_text())
        average = load_file(folder / "ema.safetensors")
        trained.best = load_file(folder / BEST_FILE) if state.get("best_step") else None
        if trained.by_engine:
            trained.accelerator.load_state(str(folder))
        else:
            saved = torch.load(folder / "optimizer.pt", map_location="cpu", weights_only=True)
            trained.load_states(load_file(folder / "model.safetensors"), saved["optimizer"])
            if trained.accelerator.scaler is not None and saved["scaler"] is not None:
                trained.accelerator.scaler.load_state_dict(saved["scaler"])
        trained.ema.load(average, state.pop("ema_updates"))
        return Progress(**state)
    except (SafetensorError, pickle.UnpicklingError, *READ_ERRORS) as error:
        if not _is_damage(error):
            raise
        first = (str(error).splitlines() or [type(error).__name__])[0]
        raise Failure(
            f"The checkpoint {folder} is damaged: {first}.",
            "Move that folder elsewhere and run the same command again: it goes on from the one before.",
        ) from error


def _is_damage(error: Exception) -> bool:
    """Whether the file is damaged, as opposed to a lack of memory or permission."""
    if isinstance(error, OSError):
        return error.errno in (None, errno.ENOENT, errno.EINVAL)
    text = str(error).lower()
    return not (isinstance(error, torch.OutOfMemoryError) or "out of memory" in text or "cuda error" in text)
