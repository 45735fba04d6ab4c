"""A training step and a sampling run on any device, for models with numbers and for published ones without."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from typing import Any
from unittest import mock

import torch
from torch import Tensor

import di4c_cli
from di4c_cli import recipe_file
from di4c_cli.build import build_denoiser, build_on_meta
from di4c_cli.config import ModelConfig
from di4c_cli.data.stream import Batch
from di4c_cli.denoiser import Denoiser
from di4c_cli.methods.base import Method
from di4c_cli.model import Model
from di4c_cli.network.lora import merged, trained_state
from di4c_cli.noise import Noise
from di4c_cli.recipe import Recipe
from di4c_cli.teacher.registry import published_config
from di4c_cli.training import estimate
from di4c_cli.training.ema import Ema
from di4c_cli.training.estimate import Memory
from di4c_cli.training.optimizer import build_optimizer, part_settings
from di4c_cli.training.plan import make_batch_plan
from di4c_cli.training.pretrain_config import PretrainConfig, RunRecipe
from di4c_cli.training.student_init import adapter_student, build_method, method_on_meta, new_student, student_config
from tests.device.backend import DEVICE
from tests.device.pretend import PretendTensor, Watch, held, on_gpu
from tests.helpers.small_models import WORLDS

GPU_BYTES = 80 << 30
"""Memory of the GPU that published steps pretend to have."""
GOLDEN = Path(__file__).parents[1] / "golden"
RANDOM: dict[str, dict[str, Any]] = {
    "uniform": {
        "network": {"type": "dit", "symbols": 24, "length": 12, "width": 16, "depth": 2, "heads": 2, "cond_dim": 8},
        "process": {"type": "uniform", "symbols": 24, "schedule": "linear"},
    },
    "labelled-pixels": WORLDS["pixels"] | {"labels": 3, "network": WORLDS["pixels"]["network"] | {"labels": 3}},
}
"""Models with random weights, for what no other small model has."""


def load(name: str) -> Model:
    """A small model: an embedded one, one of `RANDOM` or one of the golden files."""
    if name not in RANDOM:
        return di4c_cli.load(str(GOLDEN / name) if (GOLDEN / name).is_dir() else name)
    torch.manual_seed(0)
    config = ModelConfig(kind="teacher", name=name, **RANDOM[name])
    return Model(config, build_denoiser(config).eval())


def small_student(recipe: RunRecipe) -> tuple[Model, ModelConfig, Denoiser]:
    """A small teacher, and its student before the first step; a pretraining trains the teacher itself."""
    if isinstance(recipe, PretrainConfig):
        model = load(recipe.model_name)
        return model, model.config, model.denoiser.requires_grad_(True)
    teacher = load(recipe.teacher)
    config = student_config(teacher, recipe, 1)
    if config.adapter is not None:
        return teacher, config, adapter_student(teacher.denoiser, config, recipe, 1)
    return teacher, config, new_student(teacher, config, recipe, 1)


def training_gradients(
    recipe: RunRecipe, device: str, watch: Watch | None = None, index: Sequence[int] = range(4)
) -> tuple[float, dict[str, Tensor]]:
    """Loss and gradients of one batch of a small model; of an adapter the merged weights too."""
    teacher, config, student = small_student(recipe)
    frozen = teacher.denoiser if recipe.method.needs_teacher else None
    method = build_method(recipe, student, frozen, 1)
    teacher.to(device)
    method.to(device)
    batch = random_batch(len(index), student.length, student.symbols, teacher.config.labels)
    batch = Batch(
        list(index), batch.x0 if recipe.data != "teacher" or recipe.method.pool_without_data else None, batch.label
    )
    if watch is not None:
        watch.clear()
    noise = Noise(0, batch.index, "train/1", device)
    total = sum(method(batch.to(device), noise, 0.5, part)[0] for part in method.updates(0))
    total.backward()
    gradients = {name: held(p.grad) for name, p in method.named_parameters() if p.grad is not None}
    if config.adapter is not None:  # as at the end of a run, when the averages are on the CPU
        own = {name: value.cpu() for name, value in trained_state(student.network).items()}
        whole = merged(teacher.denoiser.network.state_dict(), own, config.adapter)
        gradients |= {f"merged {name}": held(value.detach()) for name, value in whole.items()}
    return float(total.detach()), gradients


def random_batch(count: int, length: int, symbols: int, labels: int | None) -> Batch:
    """Samples of uniform symbols."""
    generator = torch.Generator().manual_seed(0)
    x0 = torch.randint(0, symbols, (count, length), generator=generator)
    return Batch(list(range(count)), x0, None if labels is None else torch.arange(count) % labels)


def published_recipes() -> list[str]:
    """The recipes that distil a published teacher."""
    distilled = [name for name in recipe_file.names() if recipe_file.kind_of(name) == "distill"]
    return [name for name in distilled if published_config(recipe_file.read(name).teacher) is not None]


def published_step(name: str, **changes: Any) -> tuple[Watch, Recipe, int]:
    """What one training step of a published recipe does at its published size; its peak memory is the watch's."""
    recipe = recipe_file.read(name, {key.replace("__", "."): value for key, value in changes.items()})
    config = published_config(recipe.teacher)
    assert config is not None
    watch = Watch()
    with watch, mock.patch("di4c_cli.memory.gpu_memory", lambda device=None: GPU_BYTES):
        method, batch = _published_method(recipe, config)
        settings = part_settings(method.parts(), recipe.training.optimizer)
        optimizer = build_optimizer(method.parts(), settings)
        ema = Ema(method.student.network, recipe.training.ema)
        for parameter in method.parameters():
            parameter.grad = torch.zeros_like(parameter)
        optimizer.step()  # from here on the optimizer's state exists
        optimizer.zero_grad()
        noise = Noise(0, batch.index, "train/1", DEVICE)
        for denoiser in (method.student, *([method.teacher] if recipe.method.needs_teacher else [])):
            if batch.x0 is not None:  # constants of the process
                denoiser.process.corrupt(batch.x0, noise.uniform("t"), noise.uniform("u", denoiser.length))
        watch.clear()
        half = {"bf16": torch.bfloat16, "fp16": torch.float16}.get(recipe.training.precision)
        for part in method.updates(0):
            noise = Noise(0, batch.index, f"train/1/{part}" if part else "train/1", DEVICE)
            with torch.autocast(DEVICE, dtype=half, enabled=half is not None):
                total = method(batch, noise, 0.5, part)[0]
            total.float().backward()
            torch.nn.utils.clip_grad_norm_(method.parts()[part].parameters, 1.0)
            optimizer.step()
            if part == 0:
                ema.update(method.student.network)
            optimizer.zero_grad()
        torch.clear_autocast_cache()
    return watch, recipe, len(batch.index)


def estimated_memory(recipe: Recipe) -> Memory:
    """What `--dry-run` says about one process of a published recipe on that GPU."""
    config = published_config(recipe.teacher)
    assert config is not None
    student = student_config(Model(config, build_on_meta(config)), recipe, 1)
    with mock.patch.object(estimate, "gpu_memory", lambda device=None: GPU_BYTES):
        return estimate.estimate(student, config, recipe, make_batch_plan(recipe.training.batch, None, 1))


def _published_method(recipe: Recipe, config: Any) -> tuple[Method, Batch]:
    teacher = Model(config, build_on_meta(config))
    student = student_config(teacher, recipe, 1)
    method = method_on_meta(recipe, student, config)
    on_gpu(method)
    if recipe.method.needs_teacher:
        on_gpu(method.teacher).requires_grad_(False)
    setattr(method.student.network, "checkpointing", recipe.training.activation_checkpointing)  # noqa: B010
    count = recipe.training.micro_batch or recipe.training.batch
    batch = random_batch(count, method.student.length, method.student.symbols, config.labels)
    return method, batch.to(DEVICE)


def sample(name: str, device: str, **options: Any) -> Tensor:
    """Three samples of a small model."""
    model = load(name).to(device)
    if known := options.pop("given", 0):
        options["given"] = torch.where(torch.arange(model.denoiser.length) < known, 1, -1)
    found = model.sample(3, seed=1, **options)
    assert device == "cpu" or isinstance(found, PretendTensor) or found.device.type == "cpu"
    return held(found)  # type: ignore[no-any-return]


def published_sampling(name: str, count: int, **options: Any) -> Watch:
    """What drawing `count` samples of a published student does at its published size, as one batch."""
    recipe = recipe_file.read(name, {})
    config = published_config(recipe.teacher)
    assert config is not None
    student = student_config(Model(config, build_on_meta(config)), recipe, 1)
    watch = Watch()
    with watch:
        model = Model(student, build_on_meta(student))
        on_gpu(model.denoiser)
        watch.clear()
        model.sample(count, batch_size=count, hybrid=0, **options)
    return watch
