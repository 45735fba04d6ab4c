"""A file format: the same teacher as one flat vector in safetensors, told by the only name in the file."""

from __future__ import annotations

import torch

from di4c_cli.build import build_network
from di4c_cli.config import ModelConfig
from di4c_cli.teacher.bundle import Bundle, LoadOptions
from di4c_cli.teacher.model_files import ModelFiles
from random_teacher import CONFIG

NAME = "numbers"
RECIPE = "digits"


def is_ours(names: set[str]) -> bool:
    """The file holds one tensor, called `all_numbers`."""
    return names == {"all_numbers"}


def detect(source: ModelFiles) -> bool:
    """By content, like di4c's own formats."""
    return source.tensor_file(is_ours) is not None


def read(source: ModelFiles, options: LoadOptions) -> Bundle:
    """Cut the vector into the network's tensors, in order."""
    path = source.tensor_file(is_ours)
    assert path is not None
    config = ModelConfig.model_validate(CONFIG)
    with torch.device("meta"):
        slots = build_network(config).state_dict()
    parts = source.tensors(path)["all_numbers"].split([slot.numel() for slot in slots.values()])
    tensors = {name: part.view(slot.shape) for (name, slot), part in zip(slots.items(), parts)}
    return Bundle(config, tensors, path.name)
