"""What a toy task is: embedded data, a codec, the classifier or judge of its samples, and its defaults."""

from __future__ import annotations

import json
from abc import ABC, abstractmethod
from dataclasses import dataclass
from functools import cached_property
from typing import Any

import torch
from safetensors.torch import load_file
from torch import Tensor

from di4c_cli import codec, embedded
from di4c_cli.metric.classifier import Classifier


@dataclass(frozen=True)
class TaskData:
    """Clean samples `(N, D)`, training and held out; text has no labels."""

    train: Tensor
    held_out: Tensor
    train_label: Tensor | None = None
    held_out_label: Tensor | None = None


class ToyTask(ABC):
    """One embedded task. Data and codec are loaded on first use and then kept."""

    name: str
    figures: tuple[str, ...]
    """Figures of the task's protocol; the first is the main one."""
    class_names: tuple[str, ...] = ()
    diversity: str
    """The figure that measures diversity beside the main figure."""
    eval_steps: tuple[int, ...]
    eval_samples: int
    """Defaults of `di4c eval`: two slow cores finish in under two minutes."""
    protocol_steps: tuple[int, ...] = (1, 2, 4, 8, 16, 32)
    """Step counts of the protocol that has the task's name."""
    steps_saved_samples: int
    """Samples of each cell and repeat of the protocol `steps-saved`."""

    @cached_property
    def data(self) -> TaskData:
        return self.load_data()

    @cached_property
    def codec(self) -> codec.Codec:
        """The codec in the config.json of the embedded teacher."""
        folder = embedded.model(self.name, "teacher")
        return codec.build(json.loads((folder / "config.json").read_text())["codec"], folder)

    @abstractmethod
    def load_data(self) -> TaskData:
        """Read the embedded data."""

    @abstractmethod
    def has_codec(self, entry: dict[str, Any]) -> bool:
        """Whether a model with this codec entry in its config.json makes samples of this task."""


class ImageTask(ToyTask):
    """A task of grey images, measured in the features of a small classifier."""

    figures = ("frechet", "kid", "is", "precision", "recall")
    diversity = "recall"
    classifier_name: str
    image_side: int

    @cached_property
    def classifier(self) -> Classifier:
        """The classifier whose last hidden layer is the feature space of the metrics."""
        model = Classifier(self.image_side)
        weights = load_file(embedded.asset(f"{self.classifier_name}.safetensors"))
        model.load_state_dict({name: tensor.float() for name, tensor in weights.items()})
        return model.eval().requires_grad_(False)


def split(x: Tensor, label: Tensor, held_out: int) -> TaskData:
    """Hold out `held_out` samples by a fixed shuffle."""
    order = torch.randperm(len(x), generator=torch.Generator().manual_seed(0))
    train, rest = order[held_out:], order[:held_out]
    return TaskData(x[train], x[rest], label[train], label[rest])
