"""`--dry-run`: the facts about a run that can be found without changing anything."""

from __future__ import annotations

import copy
import time
from dataclasses import asdict, dataclass, field, replace
from pathlib import Path
from typing import Any

import torch
from accelerate import Accelerator

from di4c_cli import recipe_file
from di4c_cli.build import build_on_meta
from di4c_cli.config import ModelConfig
from di4c_cli.data.items import TensorItems
from di4c_cli.data.source import probe
from di4c_cli.data.stream import Shuffled
from di4c_cli.errors import Di4cError, UserError
from di4c_cli.memory import peak_memory
from di4c_cli.methods.di4c_config import Di4CConfig
from di4c_cli.model import Model, load
from di4c_cli.network.lora import halve_frozen
from di4c_cli.recipe import Recipe
from di4c_cli.teacher.reference import remote
from di4c_cli.teacher.registry import published_config
from di4c_cli.training.estimate import Memory, available, count, estimate, step_flops
from di4c_cli.training.loop import RunContext, TrainingLoop
from di4c_cli.training.plan import BatchPlan, recipe_plan
from di4c_cli.training.processes import StopRequest, make_accelerator
from di4c_cli.training.round_data import data_spec, pool_size
from di4c_cli.training.run_folder import RunFolder
from di4c_cli.training.student_init import adapter_student, build_method, new_student, student_config

TIMED_SAMPLES = 16
"""Teacher samples that are drawn to estimate the time of the whole pool."""
GPU_GIGABYTES = (24, 48, 80)
"""The memory of the GPUs for which it estimates; a larger one gets larger chunks of the loss."""


@dataclass
class Preview:
    """The facts about a run; `problems` are the messages of the errors that would stop it."""

    recipe: dict[str, Any]
    out: str
    run: str = ""
    teacher: str = ""
    data: str = ""
    parameters: dict[str, int] = field(default_factory=dict)
    memory: dict[str, int] = field(default_factory=dict)
    gpu_memory: dict[int, int] = field(default_factory=dict)
    flops: int | None = None
    seconds_per_step: float | None = None
    measured: str = ""
    total_seconds: float | None = None
    files: dict[str, int | None] = field(default_factory=dict)
    problems: list[str] = field(default_factory=list)
    exit_code: int = 0

    def note(self, error: Di4cError) -> str:
        """Record an error that would stop the run; the first one gives the exit code."""
        self.problems.append(str(error))
        self.exit_code = self.exit_code or error.exit_code
        return f"not reached: {error.message}"


def preview(recipe: Recipe, out: Path, processes: int, device: str | None, measure: bool = True) -> Preview:
    """Look at folder, teacher, data and sizes; with `measure`, time two steps if they fit."""
    found = Preview(recipe.model_dump(mode="json"), str(out))
    try:
        found.run = RunFolder(out).state(recipe).value
    except Di4cError as error:
        found.run = found.note(error)
    model, config = _teacher(recipe, found)
    if config is None:
        return found
    sized = model or Model(config, build_on_meta(config))
    try:
        found.data = probe(recipe.data, sized, here=model is not None)
    except Di4cError as error:
        found.data = found.note(error)
        measure = measure and not isinstance(error, UserError)  # a wrong name is told at once
    try:
        plan = recipe_plan(recipe, processes)
    except Di4cError as error:
        found.note(error)
        return found
    student = student_config(sized, recipe, 1)
    found.parameters = {"teacher": count(build_on_meta(config)), "student": count(build_on_meta(student))}
    memory = estimate(student, config, recipe, plan)
    found.memory = asdict(memory) | {"total": memory.total}
    found.gpu_memory = {size: estimate(student, config, recipe, plan, size << 30).total for size in GPU_GIGABYTES}
    found.flops = step_flops(config, recipe, plan)
    found.files = _files(recipe, out, memory)
    if measure:
        _measure(recipe, model, memory, device, plan, found)
    return found


def _teacher(recipe: Recipe, found: Preview) -> tuple[Model | None, ModelConfig | None]:
    """The teacher if it is local, else the known part of its configuration; nothing is fetched."""
    far = None
    try:
        far = remote(recipe.teacher)
        if far is None or far.cached:
            # the branch may have moved since, but the sizes in the cache are still the same
            model = load(recipe.teacher, weights=recipe.init_weights, offline=far is not None)
            found.teacher = "here"
            return model, model.config
        found.teacher = f"would be fetched: {far.reach()}"
    except Di4cError as error:
        found.teacher = found.note(error)
    return None, published_config(recipe.teacher) or (None if far is None else far.config())


def _files(recipe: Recipe, out: Path, memory: Memory) -> dict[str, int | None]:
    """The files that would be written, with their sizes in bytes where these are known.

    A student's folder holds what its average holds; a checkpoint that, what is trained, and two moments of it.
    """
    weights, checkpoint, rounds = memory.ema, 3 * memory.optimizer // 2 + memory.ema, recipe.rounds
    kept = min(recipe.training.keep, -(-recipe.training.iterations // recipe.training.checkpoint_every))
    each = "round-1" if rounds == 1 else f"round-{{1..{rounds}}}"
    written: dict[str, int | None] = {
        "recipe.yaml": len(recipe_file.dump(recipe)),
        "metrics.jsonl": None,
        "curves.png": None,
        f"{each}/checkpoints/ ({kept} kept{' in each' * (rounds > 1)})": rounds * kept * checkpoint,
        f"{each}/student/": rounds * weights,
        "student/": weights,
    } | ({"samples/": None} if recipe.training.sample_every else {})
    return {f"{out}/{name}": size for name, size in written.items()}


def _measure(
    recipe: Recipe, model: Model | None, memory: Memory, device: str | None, plan: BatchPlan, found: Preview
) -> None:
    """Two real steps of one process's share; the second one counts."""
    if model is None:
        found.measured = "not measured: the teacher is not here"
        return
    share = recipe.model_copy(deep=True)
    share.training.batch = plan.passes * plan.micro
    if isinstance(share.method, Di4CConfig):
        share.method.latents //= plan.group
    accelerator = make_accelerator(recipe.training.precision, device, [], Path())
    if memory.total > available(accelerator.device):
        found.measured = "not measured: it would not fit this device"
        return
    work = trial_loop(share, model, accelerator)
    work.step()
    start = time.monotonic()
    work.step()
    if accelerator.device.type == "cuda":
        torch.cuda.synchronize()
    seconds = time.monotonic() - start
    found.seconds_per_step = seconds
    before = _seconds_of_pool(recipe, model.to(accelerator.device))
    found.total_seconds = (before + seconds * recipe.training.iterations) * recipe.rounds
    peak = peak_memory(accelerator.device.type) / 2**20
    found.measured = f"second of two steps on {accelerator.device.type}, peak memory {peak:.0f} MB"
    accelerator.free_memory()
    if (first := recipe_file.start_recipe(recipe)) is not None:
        begun = Preview({}, "")
        _measure(first, model, memory, device, recipe_plan(first, 1), begun)
        found.total_seconds += begun.total_seconds or 0.0


def trial_loop(recipe: Recipe, model: Model, accelerator: Accelerator) -> TrainingLoop:
    """The training loop of a recipe on random symbols; it writes nothing."""
    config, teacher = student_config(model, recipe, 1), model.denoiser
    if config.adapter is None:
        student, teacher = new_student(model, config, recipe, 1), copy.deepcopy(teacher)
    else:
        student = adapter_student(teacher, config, recipe, 1)
        if config.adapter.base_precision == "bf16":
            halve_frozen(student.network)
    frozen = teacher.to(accelerator.device) if recipe.method.needs_teacher else None
    method = build_method(recipe, student, frozen, 1)
    context = RunContext(
        Path(), None, StopRequest(loud=False), lambda row: None, lambda step, tensors: None, lambda text: None
    )
    # a step takes as long as with data
    spec, batch = data_spec(recipe, model, 1), recipe.training.batch
    label = None if spec.labels is None else torch.randint(spec.labels, (batch,))
    items = TensorItems(torch.randint(spec.symbols, (batch, spec.length)), label)
    return TrainingLoop(accelerator, recipe, 1, method, Shuffled(items, replace(spec, flip=False)), context)


def _seconds_of_pool(recipe: Recipe, teacher: Model) -> float:
    """Seconds for the teacher's own samples of a round, estimated from a few of them."""
    _, count = pool_size(recipe)
    few = min(count, TIMED_SAMPLES)
    if not few:
        return 0.0
    start = time.monotonic()
    teacher.sample(few, steps=recipe.training.synthetic_steps).cpu()
    return (time.monotonic() - start) * count / few
