"""Adam or AdamW from recipe values, and the learning rate as a function of the step alone."""

from __future__ import annotations

import math
from collections.abc import Sequence

import torch

from di4c_cli.errors import UserError
from di4c_cli.methods.base import TrainedPart
from di4c_cli.training.config import OptimizerConfig


def part_settings(parts: Sequence[TrainedPart], base: OptimizerConfig) -> list[OptimizerConfig]:
    """The optimizer settings of every part: the recipe's, with the part's own keys."""
    settings = [OptimizerConfig.model_validate(base.model_dump() | part.optimizer) for part in parts]
    if any(own.kind != base.kind for own in settings):
        raise UserError("All parts of a method share one kind of optimizer.", "Remove `kind` from the part.")
    return settings


def build_optimizer(parts: Sequence[TrainedPart], settings: Sequence[OptimizerConfig]) -> torch.optim.Optimizer:
    """One optimizer with a group per part; `adam` couples weight decay with the gradient, `adamw` does not."""
    kind = torch.optim.AdamW if settings[0].kind == "adamw" else torch.optim.Adam
    groups = [
        {"params": part.parameters, "lr": own.lr, "betas": own.betas, "eps": own.eps, "weight_decay": own.weight_decay}
        for part, own in zip(parts, settings, strict=True)
    ]
    # one kernel for many tensors; on the CPU the results would differ in the last bits from those without
    fused = all(parameter.device.type not in ("cpu", "mps") for part in parts for parameter in part.parameters)
    return kind(groups, fused=fused or None)


def learning_rate(settings: OptimizerConfig, step: int, iterations: int) -> float:
    """Linear over the first `warmup` iterations, then constant or a cosine to zero; `step` counts from 0."""
    rate = settings.lr * min(1.0, (step + 1) / settings.warmup) if settings.warmup else settings.lr
    if settings.decay == "cosine":
        rate *= 0.5 * (1 + math.cos(math.pi * step / iterations))
    return rate
