"""Memory of one process of a run, counted on the meta device."""

from __future__ import annotations

from collections.abc import Callable, Iterator
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
from di4c_cli.latent.injection import ConditionedTransformer
from di4c_cli.memory import below_limits, gpu_memory, physical_memory
from di4c_cli.methods.di4c_config import Di4CConfig
from di4c_cli.methods.sdtt_config import SDTTConfig
from di4c_cli.network.lora import targets
from di4c_cli.recipe import Recipe
from di4c_cli.training.plan import BatchPlan
from di4c_cli.training.pretrain_config import RunRecipe
from di4c_cli.training.student_init import method_on_meta

FLOAT32_BYTES = 4
ROWS = 64
"""Rows of the head on the meta device; constants are counted with them."""


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


class _Device:
    """Functions of torch with the memory that they take on the training device; the meta device would differ.

    Attention is fused, autocast converts the inputs of products, and a GPU keeps one byte of each dropout mask.
    """

    def __init__(self, half: bool, gpu: bool) -> None:
        self.half, self.gpu = half, gpu
        self.own: dict[Tensor, Tensor] = {}
        """Weights and their converted copies, which are no activations."""

    @contextmanager
    def functions(self) -> Iterator[None]:
        """Replace them while the block runs."""
        plain = functional.scaled_dot_product_attention
        new: dict[str, Any] = {plain.__name__: lambda q, k, v, **_: _Attention.apply(q, k, v)}
        if self.half:
            new |= {name: self._narrow(getattr(functional, name)) for name in ("linear", "conv1d", "conv2d")}
        if self.gpu:
            new["dropout"] = lambda x, p, training=True, inplace=False: torch.native_dropout(x, p, training)[0]
        old = {name: getattr(functional, name) for name in new}
        for name, function in new.items():
            setattr(functional, name, function)
        try:
            yield
        finally:
            for name, function in old.items():
                setattr(functional, name, function)

    def _narrow(self, function: Callable[..., Tensor]) -> Callable[..., Tensor]:
        def converted(x: Tensor, weight: Tensor, bias: Tensor | None = None, *args: Any) -> Tensor:
            copies = [None if w is None else self.own.setdefault(w, w.to(torch.bfloat16)) for w in (weight, bias)]
            return function(x.to(torch.bfloat16), *copies, *args)

        return converted

    def saved_bytes(self, module: nn.Module, call: Callable[[], object]) -> int:
        """Bytes that a call on the meta device keeps for its backward pass, without weights."""
        kept: dict[int, int] = {}

        def pack(value: Tensor) -> Tensor:
            kept[value.untyped_storage()._cdata] = value.untyped_storage().nbytes()
            return value

        hooks = torch.autograd.graph.saved_tensors_hooks(pack, lambda value: value)
        with torch.device("meta"), self.functions(), hooks:
            result = call()  # kept until the sum: a freed storage's address is used again
        own = [*module.parameters(), *self.own.values()]
        for value in own:
            kept.pop(value.untyped_storage()._cdata, None)
        del result
        return sum(kept.values())


def saved_bytes(denoiser: Denoiser, half: bool, gpu: bool = False) -> int:
    """Bytes that one sequence's forward pass keeps for its backward pass."""
    network = denoiser.network.train()
    return _Device(half, gpu).saved_bytes(network, lambda: _hidden(denoiser)) // 2


def _hidden(denoiser: Denoiser) -> Tensor:
    """Hidden states of two sequences."""
    x, t = torch.zeros(2, denoiser.length, dtype=torch.long), torch.zeros(2)
    label = None if denoiser.labels is None else torch.zeros(2, dtype=torch.long)
    size = 1 if denoiser.latent is None else denoiser.latent.size
    lam = None if denoiser.latent is None else torch.zeros((2,) if size == 1 else (2, size))
    out: Tensor = denoiser.network.body(x, t, label, lam)  # type: ignore[operator]
    return out


def activation_bytes(denoiser: Denoiser, recipe: RunRecipe, sequences: int, gpu: bool) -> int:
    """Of `sequences` in each pass with a graph, with the student at u and the teacher beside the student at t."""
    half = recipe.training.precision != "fp32"
    saved, size = saved_bytes(denoiser, half, gpu), 2 if half else FLOAT32_BYTES
    state = denoiser.length * int(getattr(denoiser.network, "width", 1)) * size
    if recipe.training.activation_checkpointing:
        blocks = _blocks(denoiser.network)
        saved = saved // blocks + min(blocks * state, saved)
    return sequences * (recipe.method.graphs_at_once * saved + 2 * state)


def _blocks(network: nn.Module) -> int:
    """Parts that are recomputed one at a time."""
    stack = getattr(getattr(network, "transformer", network), "layers", getattr(network, "blocks", 1))
    return max(1, len(stack) if isinstance(stack, nn.ModuleList) else 4 * int(stack))


def loss_bytes(denoiser: Denoiser, recipe: RunRecipe, micro: int, gpu: int | None) -> int:
    """Of the loss where nothing is known: what is kept between its two passes, and one chunk of rows at work."""
    method = recipe.method
    chunk, cache = method.loss_memory(gpu)
    rows, latents, row = micro * denoiser.length, method.predictions_per_sample, denoiser.symbols * FLOAT32_BYTES
    if method.graphs_at_once > 1:  # at δ every λ has a sample of its own
        rows, latents = rows * latents, 1
    targets = 2 if method.needs_teacher else 0
    some = min(rows, max(1, chunk // (row * latents)))
    every = min(cache, rows * row * (latents + targets // 2))
    first = every * (rows - some) // rows + some * row * (2 * latents + 3 + targets)
    return max(first, every + some * latents * (row + _head_bytes(denoiser, row)))


def _head_bytes(denoiser: Denoiser, row: int) -> int:
    """Of one row in the backward pass of a head that torch differentiates: what it keeps, and three gradients."""
    network: Any = denoiser.network
    if getattr(network, "linear_head", None) is not None:
        return 0
    with torch.device("meta"), torch.no_grad():
        hidden, d = _hidden(denoiser)[0, :ROWS].requires_grad_(), torch.zeros(ROWS, dtype=torch.long)
    return _Device(False, False).saved_bytes(network, lambda: network.head(hidden, d)) // ROWS + 3 * row


def estimate(
    config: ModelConfig, teacher: ModelConfig, recipe: RunRecipe, plan: BatchPlan, gpu: int | None = None
) -> Memory:
    """Peak memory of one process, here or on a GPU of `gpu` bytes; what the frameworks take comes on top.

    Gradients follow the activations, which their backward pass frees.
    """
    method, denoiser, gpu = method_on_meta(recipe, config, teacher), build_on_meta(config), gpu or gpu_memory()
    weights = count(method) * FLOAT32_BYTES
    frozen = count(build_on_meta(teacher)) * FLOAT32_BYTES if recipe.method.needs_teacher else 0
    adapter, half = recipe.training.adapter, False
    if adapter is not None:  # teacher and student share the frozen weights
        base = count(build_on_meta(teacher))
        half = adapter.base_precision == "bf16" and getattr(method.student.network, "half_base", False)
        frozen = base * (2 if half else FLOAT32_BYTES)
        network = method.student.network
        layers = (network.get_parameter(f"{name}.weight") for name in targets(network, adapter))
        weights += (adapter.rank * sum(sum(layer.shape) for layer in layers) - base) * FLOAT32_BYTES  # of A and B
    sequences = plan.micro * recipe.method.predictions_per_sample // plan.group
    casts = weights // 2 if recipe.training.precision != "fp32" else 0
    if casts and adapter is not None and not half:
        # autocast converts a frozen weight in every pass, and the graph keeps the copy
        copies = 2 * _linear_size(method.student.network) * recipe.method.graphs_at_once
        casts += copies // (_blocks(method.student.network) if recipe.training.activation_checkpointing else 1)
    activations = activation_bytes(denoiser, recipe, sequences, gpu is not None)
    loss = loss_bytes(denoiser, recipe, plan.micro, gpu)
    kept = plan.passes > 1 or plan.processes > 1  # summed over passes, or copied for the exchange
    return Memory(
        weights=weights + casts,
        teacher=frozen,
        gradients=weights if kept else max(0, weights - activations - loss),
        optimizer=2 * weights,
        ema=weights if adapter is not None else count(method.student.network) * FLOAT32_BYTES,
        activations=activations,
        loss_chunk=loss,
    )


def _linear_size(network: nn.Module) -> int:
    """Weights of the linear layers; λ has next to none of them."""
    return sum(layer.weight.numel() for layer in network.modules() if isinstance(layer, nn.Linear))


def step_flops(teacher: ModelConfig, recipe: Recipe, plan: BatchPlan) -> int | None:
    """Of one process's step of Di4C or SDTT with a transformer, attention not counted: 2 for each weight and token.

    Di4C's teacher passes forward once for each sample, its student at u once for each λ; SDTT's teacher once a step.
    The student at t passes forward, backward (a frozen weight has no gradient) and, with checkpointing, forward again.
    """
    network, method = build_on_meta(teacher).network, recipe.method
    if not isinstance(method, (Di4CConfig, SDTTConfig)) or not isinstance(network, ConditionedTransformer):
        return None
    own = 2 + (recipe.training.adapter is None) + recipe.training.activation_checkpointing
    one = 1 + method.latents // plan.group * (1 + own) if isinstance(method, Di4CConfig) else own + method.teacher_steps
    sequences = plan.passes * plan.micro * one
    tied = network.symbols * network.width if getattr(network, "lm_head", True) is None else 0
    return 2 * sequences * network.length * (_linear_size(network) + tied)


def check_memory(memory: Memory) -> None:
    """Reject a step that cannot fit into the memory of this machine."""
    have = physical_memory()
    if memory.total > have:
        raise UserError(
            f"A training step needs about {memory.total / 2**30:.0f} GB, and this machine has {have / 2**30:.0f} GB.",
            "Use a smaller --batch or `training.micro_batch`.",
        )


def available(device: torch.device) -> int:
    """Bytes free on a device, for this process."""
    if device.type == "cuda":
        return int(torch.cuda.mem_get_info(device)[0])
    return min(int(psutil.virtual_memory().available), below_limits())
