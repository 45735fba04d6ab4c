"""Memory of one process of a run, counted on the meta device."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import asdict, dataclass
from typing import Any

import psutil
import torch
from torch import Tensor, nn
from torch.nn import functional

from di4c_cli.build import build_on_meta
from di4c_cli.config import ModelConfig
from di4c_cli.denoiser import Denoiser
from di4c_cli.errors import UserError
from di4c_cli.memory import gpu_memory, physical_memory
from di4c_cli.recipe import Recipe
from di4c_cli.training.plan import BatchPlan
from di4c_cli.training.student_init import method_on_meta

FLOAT32_BYTES = 4


@dataclass(frozen=True)
class Memory:
    """Bytes at the peak of a training step, by cause."""

    weights: int
    teacher: int
    gradients: int
    optimizer: int
    ema: int
    activations: int
    loss_chunk: int

    @property
    def total(self) -> int:
        return sum(asdict(self).values())


def count(module: nn.Module) -> int:
    """Number of weights."""
    return sum(parameter.numel() for parameter in module.parameters())


class _Attention(torch.autograd.Function):
    """What the fused attention of CPUs and GPUs keeps: inputs, output and a number per row, no square matrix."""

    @staticmethod
    def forward(ctx: Any, query: Tensor, key: Tensor, value: Tensor) -> Tensor:
        out = torch.empty_like(query)
        ctx.save_for_backward(query, key, value, out, query.new_empty(query.shape[:-1], dtype=torch.float32))
        return out

    @staticmethod
    def backward(ctx: Any, *grads: Tensor) -> Any:
        raise NotImplementedError("sizes only")


@contextmanager
def _fused_attention() -> Iterator[None]:
    """On the meta device torch would take the attention apart and keep its matrix."""
    plain = functional.scaled_dot_product_attention
    functional.scaled_dot_product_attention = lambda q, k, v, **_: _Attention.apply(q, k, v)
    try:
        yield
    finally:
        functional.scaled_dot_product_attention = plain


def saved_bytes(denoiser: Denoiser, half: bool) -> int:
    """Bytes that one sequence's forward pass keeps for its backward pass."""
    network = denoiser.network.to(torch.bfloat16) if half else denoiser.network
    network.train()
    own = {parameter.untyped_storage()._cdata for parameter in network.parameters()}
    kept: dict[int, int] = {}

    def pack(value: Tensor) -> Tensor:
        storage = value.untyped_storage()
        if storage._cdata not in own:
            kept[storage._cdata] = storage.nbytes()
        return value

    hooks = torch.autograd.graph.saved_tensors_hooks(pack, lambda value: value)
    with torch.device("meta"), _fused_attention(), hooks:
        x, t = torch.zeros(2, denoiser.length, dtype=torch.long), torch.zeros(2)
        label = None if denoiser.labels is None else torch.zeros(2, dtype=torch.long)
        size = 1 if denoiser.latent is None else denoiser.latent.size
        lam = None if denoiser.latent is None else torch.zeros((2,) if size == 1 else (2, size))
        network.body(x, t, label, lam)  # type: ignore[operator]
    return sum(kept.values()) // 2


def activation_bytes(config: ModelConfig, recipe: Recipe, sequences: int) -> int:
    """Of `sequences` in each pass with a graph, with the student at u and the teacher beside the student at t."""
    half = recipe.training.precision != "no"
    denoiser = build_on_meta(config)
    saved, size = saved_bytes(denoiser, half), 2 if half else FLOAT32_BYTES
    blocks = _blocks(denoiser.network)
    state = denoiser.length * int(getattr(denoiser.network, "width", 1)) * size
    if recipe.training.activation_checkpointing:
        saved = saved // blocks + min(blocks * state, saved)
    return sequences * (recipe.method.graphs_at_once * saved + saved // blocks + 2 * state)


def _blocks(network: nn.Module) -> int:
    """Parts that are recomputed one at a time."""
    return max(1, int(getattr(network, "depth", 0)) or 4 * int(getattr(network, "blocks", 1)))


def estimate(config: ModelConfig, teacher: ModelConfig, recipe: Recipe, plan: BatchPlan) -> Memory:
    """Peak memory of one process; what the frameworks themselves take comes on top."""
    method = method_on_meta(recipe, config, teacher)
    weights = count(method) * FLOAT32_BYTES
    frozen = count(build_on_meta(teacher)) * FLOAT32_BYTES if recipe.method.needs_teacher else 0
    sequences = plan.micro * recipe.method.predictions_per_sample
    casts = weights // 2 if recipe.training.precision != "no" else 0
    return Memory(
        weights=weights + casts,
        teacher=frozen,
        gradients=weights,
        optimizer=2 * weights,
        ema=count(method.student.network) * FLOAT32_BYTES,
        activations=activation_bytes(config, recipe, sequences),
        loss_chunk=sum(recipe.method.loss_memory(gpu_memory())),
    )


def check_memory(memory: Memory) -> None:
    """Reject a step that cannot fit into the memory of this machine."""
    have = physical_memory()
    if memory.total > have:
        raise UserError(
            f"A training step needs about {memory.total / 2**30:.0f} GB, and this machine has {have / 2**30:.0f} GB.",
            "Use a smaller --micro-batch or --batch; `di4c distill --dry-run` estimates the need.",
        )


def available(device: torch.device) -> int:
    """Bytes free on a device."""
    if device.type == "cuda":
        return int(torch.cuda.mem_get_info(device)[0])
    return int(psutil.virtual_memory().available)
