"""One round: steps on Accelerate from the last checkpoint to the last iteration."""

from __future__ import annotations

import time
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from pathlib import Path

import torch
from accelerate import Accelerator, DistributedType
from torch import Tensor

from di4c_cli.data.prefetch import prefetched
from di4c_cli.data.stream import Source
from di4c_cli.errors import Failure, UserError
from di4c_cli.methods.base import Method
from di4c_cli.noise import Noise, sample_seeds
from di4c_cli.training import checkpoint
from di4c_cli.training.checkpoint import CheckpointedObjects, Progress
from di4c_cli.training.ema import Ema
from di4c_cli.training.held_out import HeldOut
from di4c_cli.training.metrics import MetricsFile, MetricsRow, StepMetrics, finite_or_none
from di4c_cli.training.movement import MovementCheck
from di4c_cli.training.optimizer import build_optimizer, learning_rate, part_settings
from di4c_cli.training.plan import recipe_plan
from di4c_cli.training.pretrain_config import RunRecipe
from di4c_cli.training.processes import Stopped, StopRequest, latent_group
from di4c_cli.training.run_folder import checkpoint_folders

Report = Callable[[MetricsRow], None]
"""Called by the main process after every step with the row that went into metrics.jsonl."""
GPU_WORKERS = 2
"""Threads that read data while a GPU computes; on a CPU they would compete with the step."""


@dataclass
class RunContext:
    """What the training loop needs from the run around it."""

    checkpoints: Path
    metrics: MetricsFile | None
    stop: StopRequest
    report: Report
    sample: Callable[[int, dict[str, Tensor]], None]
    warn: Callable[[str], None]
    held_out: HeldOut | None = None


class TrainingLoop:
    """The state of one round and its steps."""

    def __init__(
        self,
        accelerator: Accelerator,
        recipe: RunRecipe,
        number: int,
        method: Method,
        source: Source,
        context: RunContext,
    ) -> None:
        self.accelerator, self.recipe, self.source, self.context = accelerator, recipe, source, context
        self.plan = recipe_plan(recipe, accelerator.num_processes)
        method.latent_group = latent_group(accelerator, self.plan.group)
        accelerator.gradient_accumulation_steps = self.plan.passes
        method.touch_all_parameters = accelerator.num_processes > 1
        plugin = accelerator.state.deepspeed_plugin
        if plugin is not None:  # DeepSpeed would look for these in a data loader
            plugin.deepspeed_config["train_micro_batch_size_per_gpu"] = self.plan.micro
            plugin.deepspeed_config["gradient_accumulation_steps"] = self.plan.passes
        method.to(accelerator.device)  # before the optimizer is built, which is fused on a GPU
        sharded = accelerator.distributed_type in (DistributedType.DEEPSPEED, DistributedType.FSDP)
        if recipe.training.adapter is not None and sharded:
            raise UserError("An adapter shares its teacher's weights, which cannot be sharded.", "Use ddp.")
        parts = method.parts()
        if plugin is not None and len(parts) > 1:
            raise UserError("DeepSpeed trains methods with one part only.", "Use ddp or fsdp2.")
        self.settings = part_settings(parts, recipe.training.optimizer)
        optimizer = build_optimizer(parts, self.settings)
        self.module, self.optimizer = accelerator.prepare(method, optimizer)
        self.ema = Ema(self.network, recipe.training.ema)
        self.trained = CheckpointedObjects(accelerator, self.module, self.optimizer, self.ema)
        self.progress = Progress(round=number)
        self._names: list[list[str]] = [[] for _ in parts]
        self._updates = method.updates
        self._detector = method.collapse_detector()
        self._movement = self._movement_check()

    @property
    def network(self) -> torch.nn.Module:
        """The student's network as it is being trained."""
        return self.accelerator.unwrap_model(self.module, keep_torch_compile=False).student.network

    def resume(self, folder: Path) -> None:
        """Go back to a checkpoint."""
        self.progress = checkpoint.load(folder, self.trained)

    @property
    def finished(self) -> bool:
        """Whether the last iteration is done, or the held-out loss has not fallen for long enough."""
        held_out, progress = self.context.held_out, self.progress
        stale = held_out is not None and progress.stale >= held_out.patience
        return stale or progress.step >= self.recipe.training.iterations

    def weights(self) -> dict[str, Tensor]:
        """The averaged weights, those with the lowest held-out loss if there is one; every process must call this."""
        return self.ema.tensors() if self.trained.best is None else self.trained.best

    def run(self) -> None:
        """Train to the last iteration, with checkpoints on the way and at the end."""
        device, workers = self.accelerator.device, self.recipe.training.workers
        if workers is None:
            workers = 0 if device.type == "cpu" else GPU_WORKERS
        with prefetched(self.source, self._reads(), workers, device) as self.source:
            self._run()

    def _reads(self) -> Iterator[tuple[int, int]]:
        """What the steps from here on read, as `(start, count)`."""
        for step in range(self.progress.step, self.recipe.training.iterations):
            for _ in self._updates(step):
                for first in self.plan.starts(step, self.accelerator.process_index):
                    yield first, self.plan.micro

    def _run(self) -> None:
        settings, progress = self.recipe.training, self.progress
        saved_at = progress.step
        if progress.step == 0 and self.context.held_out is not None and self.context.held_out.at_start:
            loss = self._evaluate()["held_out"]
            if loss is not None and self.accelerator.is_main_process:
                self.context.warn(f"Held-out loss {loss:.4f} before the first step.")
        while not self.finished:
            stop = self.step()
            last = self.finished
            if stop or last or progress.step % settings.checkpoint_every == 0:
                self._check_movement(last)
                self.save()
                saved_at = progress.step
            if settings.sample_every and progress.step % settings.sample_every == 0:
                tensors = self.ema.tensors()  # gathers shards, so all processes take part
                if self.accelerator.is_main_process:
                    self.context.sample(progress.step, tensors)
            if stop and not last:
                raise Stopped(
                    f"Stopped after step {progress.step} of {settings.iterations} in round {progress.round}; "
                    "a checkpoint is written.",
                    "Run the same command again to resume.",
                    self.context.stop.exit_code,
                )
            if progress.bad_in_a_row >= settings.max_bad_steps:
                raise self._diagnosis(saved_at)

    def _movement_check(self) -> MovementCheck | None:
        """Of part 0 before its first step, also of a resumed run; DeepSpeed keeps its own copy of the weights."""
        if self.accelerator.state.deepspeed_plugin is not None:
            return None
        names = {id(parameter): name for name, parameter in self.module.named_parameters()}
        trained = [p for p in self.trained.inner_optimizer.param_groups[0]["params"] if p.requires_grad]
        return MovementCheck(self.accelerator, [names.get(id(p), "a tensor") for p in trained], trained)

    def _check_movement(self, last: bool) -> None:
        """Once, as soon as every tensor can be judged, or at the end."""
        training, progress = self.recipe.training, self.progress
        steps, fastest = progress.step - progress.skipped, min(progress.step - 1, self.settings[0].warmup)
        rate = learning_rate(self.settings[0], fastest, training.iterations)
        if self._movement is None or not (last or self._movement.judges(steps, rate)):
            return
        warning = self._movement.check(self.trained.inner_optimizer, training.precision, steps, rate)
        if warning and self.accelerator.is_main_process:
            self.context.warn(warning)
        self._movement = None

    def save(self) -> None:
        """Metrics first, so that a checkpoint never claims a step whose line is not on the disk."""
        if self.context.metrics is not None:
            self.context.metrics.sync()
        checkpoint.save(self.context.checkpoints, self.progress, self.trained, self.recipe.training.keep)

    def step(self) -> bool:
        """One iteration: an update of every part whose turn it is; true if a process was asked to stop."""
        start, progress = time.monotonic(), self.progress
        row: MetricsRow = {}
        good, stop, norm = True, False, 0.0
        for part in self._updates(progress.step):
            figures, fine, asked, part_norm = self._update(part)
            good, stop = good and fine, stop or asked
            if part == 0:
                norm = part_norm
            row = figures | row if part else row | figures  # `loss` is that of part 0
        progress.step += 1
        progress.skipped += not good
        progress.bad_in_a_row = 0 if good else progress.bad_in_a_row + 1
        progress.seconds += time.monotonic() - start
        self.context.stop.listen()
        rate = learning_rate(self.settings[0], progress.step - 1, self.recipe.training.iterations)
        self._record(row | self._evaluate(), norm, rate, good, time.monotonic() - start)
        # a single process need not wait for the next exchange to react to a signal
        return stop or (self.accelerator.num_processes == 1 and self.context.stop.asked)

    def _evaluate(self) -> MetricsRow:
        """The held-out loss of the averaged weights, if this step ends with an evaluation."""
        held_out = self.context.held_out
        if held_out is None or not held_out.due(self.progress.step, self.recipe.training.iterations):
            return {}
        tensors = self.ema.tensors()
        loss = finite_or_none(held_out.loss(tensors, self.accelerator))
        if self.progress.evaluated(loss):
            self.trained.best = {name: value.clone() for name, value in tensors.items()}
        return {"held_out": loss}

    def _update(self, part: int) -> tuple[MetricsRow, bool, bool, float]:
        """Backward passes and optimizer step of one part; its figures, whether they are finite, stop, gradient norm."""
        # FSDP replaces parameters, so the optimizer's groups are the ones to use
        groups = self.trained.inner_optimizer.param_groups
        for group, settings in zip(groups, self.settings):
            group["lr"] = learning_rate(settings, self.progress.step, self.recipe.training.iterations)
        figures = self._backward(part)
        for index, group in enumerate(groups):
            if index != part:
                for parameter in group["params"]:
                    parameter.grad = None  # Adam skips it: its state stays as it is
        norm = self._clip(groups[part]["params"], self.settings[part].clip)
        row, stop = figures.reduce(self.accelerator, self.plan.passes, self.context.stop.asked, self._names[part])
        good = row["loss"] is not None and finite_or_none(norm) is not None
        if good or self.accelerator.scaler is not None:
            # with fp16 the scaler itself skips a bad step and learns a smaller scale from it
            self.optimizer.step()
        if good and part == 0:
            self.ema.update(self.network)
        self.optimizer.zero_grad()
        return row, good, stop, norm

    def _backward(self, part: int) -> StepMetrics:
        progress, rank, figures = self.progress, self.accelerator.process_index, StepMetrics()
        suffix = f"/{part}" if part else ""
        # torch's global generator, which only dropout uses, so that a resumed run draws the same masks
        (seed,) = sample_seeds(f"{self.recipe.seed}:dropout:{progress.round}{suffix}:{rank}", [progress.step])
        torch.manual_seed(seed)
        for first in self.plan.starts(progress.step, rank):
            batch = self.source.read(first, self.plan.micro).to(self.accelerator.device)
            stream = f"train/{progress.round}{suffix}"
            noise = Noise(self.recipe.seed, batch.index, stream, self.accelerator.device)
            with self.accelerator.accumulate(self.module):
                share = progress.step / self.recipe.training.iterations
                with self.accelerator.autocast():  # FSDP2 adds none of its own
                    result = self.module(batch, noise, share, part)
                self.accelerator.backward(result[0])
            figures.add(*result)
        return figures

    def _clip(self, parameters: list[torch.nn.Parameter], limit: float | None) -> float:
        """Clip; returns the norm of the averaged gradient before clipping, the same in all processes."""
        norm = self.accelerator.clip_grad_norm_(parameters, limit or float("inf"))
        if norm is None:  # DeepSpeed clips inside its own step
            return 0.0
        whole = norm.full_tensor() if hasattr(norm, "full_tensor") else norm
        return float(whole)

    def _record(self, figures: MetricsRow, norm: float, rate: float, good: bool, seconds: float) -> None:
        if not self.accelerator.is_main_process:
            return
        row: MetricsRow = {"round": self.progress.round, "step": self.progress.step, **figures}
        row |= {"grad_norm": finite_or_none(norm), "lr": rate, "skipped": not good, "seconds": round(seconds, 4)}
        if self.context.metrics is not None:
            self.context.metrics.append(row)
        self.context.report(row)
        for warning in self._detector.update(figures):
            self.context.warn(f"Step {self.progress.step}: {warning}")

    def _diagnosis(self, saved_at: int) -> Failure:
        """Why the run stops, where the last good weights are, and what to change."""
        progress, precision = self.progress, self.recipe.training.precision
        first = progress.step - progress.bad_in_a_row + 1
        kept = checkpoint_folders(self.context.checkpoints)
        where = f"the last good checkpoint is {kept[-1]}" if kept else "no checkpoint was written yet"
        if kept and saved_at >= first:
            where += f", with the weights of step {first - 1}"
        advice = "Lower training.optimizer.lr, or look at the loss terms in metrics.jsonl."
        if precision == "fp16":
            advice = "Use --precision bf16 or lower training.optimizer.lr."
        return Failure(
            f"The loss or its gradient was not finite for {progress.bad_in_a_row} steps in a row, "
            f"from step {first} of round {progress.round} (precision {precision}); {where}.",
            advice,
        )
