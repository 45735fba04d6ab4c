"""LoRA: a student of frozen weights, shared with its teacher, and small trained matrices beside its linear layers.

Names follow PEFT: `<layer>.lora_A.weight` `(rank, in)` and `<layer>.lora_B.weight` `(out, rank)`, which starts at zero.
"""

from __future__ import annotations

import math
from collections.abc import Mapping

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from di4c_cli.errors import UserError
from di4c_cli.network.lora_config import AdapterConfig

LATENT_PREFIX = "latent_"
"""Modules of λ, which train in full."""


class LoraLinear(nn.Module):
    """x Wᵀ + b + scale · x Aᵀ Bᵀ; W and b are those of the replaced layer."""

    def __init__(self, base: nn.Linear, rank: int, scale: float) -> None:
        super().__init__()
        self.weight, self.bias, self.scale = base.weight, base.bias, scale
        device, dtype = base.weight.device, torch.float32 if base.weight.dtype == torch.bfloat16 else base.weight.dtype
        self.lora_A = nn.Linear(base.in_features, rank, bias=False, device=device, dtype=dtype)
        self.lora_B = nn.Linear(rank, base.out_features, bias=False, device=device, dtype=dtype)

    def forward(self, x: Tensor) -> Tensor:
        return F.linear(x, self.weight, self.bias) + self.scale * self.lora_B(self.lora_A(x))


def targets(network: nn.Module, config: AdapterConfig) -> list[str]:
    """Names of the linear layers that get an adapter."""
    head = getattr(network, "linear_head", None)
    linear = {
        name: layer
        for name, layer in network.named_modules()
        if isinstance(layer, nn.Linear) and not name.startswith(LATENT_PREFIX)
    }
    if not config.targets:
        return [name for name, layer in linear.items() if head is None or layer.weight is not head[0]]
    chosen: dict[str, None] = {}
    for target in config.targets:
        found = [name for name in linear if name == target or name.endswith(f".{target}")]
        if not found:
            known = sorted({name.rpartition(".")[2] for name in linear})
            problem = f"The network has no linear layer '{target}' for training.adapter.targets."
            raise UserError(problem, f"Layers end with {', '.join(known[:12])}.")
        if head is not None and any(linear[name].weight is head[0] for name in found):
            raise UserError(f"The output layer '{target}' takes no adapter.", "Leave it out of adapter.targets.")
        chosen |= dict.fromkeys(found)
    return list(chosen)


def add_lora(network: nn.Module, config: AdapterConfig, generator: torch.Generator | None = None) -> None:
    """Replace the chosen layers, draw A, set B to zero, and freeze everything but adapters and λ."""
    names = targets(network, config)
    if not names:
        raise UserError("The network has no linear layers for an adapter.", "Leave training.adapter out.")
    network.requires_grad_(False)
    for name, module in network.named_modules():
        if name.startswith(LATENT_PREFIX):
            module.requires_grad_(True)
    for name in names:
        parent, _, last = name.rpartition(".")
        layer = LoraLinear(network.get_submodule(name), config.rank, config.scale)  # type: ignore[arg-type]
        bound = 1 / math.sqrt(layer.lora_A.in_features)
        with torch.no_grad():
            if generator is not None:
                layer.lora_A.weight.uniform_(-bound, bound, generator=generator)
            layer.lora_B.weight.zero_()
        setattr(network.get_submodule(parent), last, layer)


def frozen_names(module: nn.Module) -> set[str]:
    """Parameters that are not trained; averages and checkpoints leave them out."""
    return {name for name, parameter in module.named_parameters() if not parameter.requires_grad}


def trained_state(module: nn.Module) -> dict[str, Tensor]:
    """The state of a module; of one with frozen parameters, the trained ones alone."""
    state, frozen = module.state_dict(), frozen_names(module)
    if not frozen:
        return state
    return {name: state[name] for name, _ in module.named_parameters() if name not in frozen}


def halve_frozen(network: nn.Module) -> None:
    """Store the frozen matrices in bfloat16, also where another network shares them, if the network allows it.

    Other networks have layers that run in float32. Vectors stay: torch rejects a LayerNorm in bfloat16 on a CPU.
    """
    for parameter in network.parameters() if getattr(network, "half_base", False) else ():
        if not parameter.requires_grad and parameter.dim() > 1:
            parameter.data = parameter.data.bfloat16()


def is_adapter(name: str) -> bool:
    """Whether a tensor belongs to an adapter, as opposed to λ or the base."""
    return ".lora_A." in name or ".lora_B." in name


def merged(base: Mapping[str, Tensor], own: Mapping[str, Tensor], config: AdapterConfig) -> dict[str, Tensor]:
    """The weights W + scale · B A of the whole student; `own` holds its adapters and the weights of λ."""
    whole = dict(base) | {name: value for name, value in own.items() if not is_adapter(name)}
    for name, down in own.items():
        if ".lora_A." in name:
            layer = name.removesuffix(".lora_A.weight")
            weight = base[f"{layer}.weight"]
            change = config.scale * (own[f"{layer}.lora_B.weight"].to(weight.device) @ down.to(weight.device))
            whole[f"{layer}.weight"] = weight + change
    return whole
