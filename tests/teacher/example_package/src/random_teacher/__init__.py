"""A teacher by name: a small masked model with random weights, described and filled in one function."""

from __future__ import annotations

import torch

from di4c_cli.build import build_network
from di4c_cli.config import ModelConfig
from di4c_cli.teacher.bundle import Bundle, LoadOptions

CONFIG = {
    "kind": "teacher",
    "name": "random-teacher",
    "network": {"type": "maskgit", "symbols": 5, "length": 6, "width": 16, "depth": 1, "heads": 2, "mlp": 16},
    "process": {"type": "masked", "symbols": 5, "schedule": "linear"},
}


def read_random(options: LoadOptions) -> Bundle:
    """What `di4c sample --teacher random-teacher` loads."""
    config = ModelConfig.model_validate(CONFIG)
    torch.manual_seed(0)
    network = build_network(config)
    return Bundle(config, dict(network.state_dict()), "random-teacher")
