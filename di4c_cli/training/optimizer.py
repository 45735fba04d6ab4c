"""Adam or AdamW from recipe values, and the learning rate as a function of the step alone."""

from __future__ import annotations

import math
from collections.abc import Iterable

import torch
from torch import nn

from di4c_cli.training.config import OptimizerConfig


def build_optimizer(parameters: Iterable[nn.Parameter], settings: OptimizerConfig) -> torch.optim.Optimizer:
    """The optimizer; `adam` couples weight decay with the gradient, `adamw` does not."""
    kind = torch.optim.AdamW if settings.kind == "adamw" else torch.optim.Adam
    return kind(
        parameters, lr=settings.lr, betas=settings.betas, eps=settings.eps, weight_decay=settings.weight_decay
    )


def learning_rate(settings: OptimizerConfig, step: int, iterations: int) -> float:
    """Linear over the first `warmup` iterations, then constant or a cosine to zero; `step` counts from 0."""
    rate = settings.lr * min(1.0, (step + 1) / settings.warmup) if settings.warmup else settings.lr
    if settings.decay == "cosine":
        rate *= 0.5 * (1 + math.cos(math.pi * step / iterations))
    return rate


def set_rate(optimizer: torch.optim.Optimizer, rate: float) -> None:
    """Set the rate of this step; there is no scheduler to restore."""
    for group in optimizer.param_groups:
        group["lr"] = rate
