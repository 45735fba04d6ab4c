"""Where a run starts: first weights, data and the domain of the model that it trains."""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path
from typing import Protocol

import torch

from di4c_cli.build import build_denoiser
from di4c_cli.config import ModelConfig
from di4c_cli.data.stream import Source
from di4c_cli.denoiser import Denoiser
from di4c_cli.model import Model
from di4c_cli.network.lora import merged
from di4c_cli.training.checkpoint import Progress
from di4c_cli.training.held_out import HeldOut


@dataclass(frozen=True)
class RoundStart:
    """One round before its first step; `teacher` is None for a method that does not call it."""

    config: ModelConfig
    """Of the model that the round trains."""
    student: Denoiser
    """That model with its first weights."""
    source: Source
    teacher: Denoiser | None = None
    codec_file: Path | None = None
    """The tokenizer or VQGAN that the config names; it is copied into the model folder."""
    held_out: HeldOut | None = None
    sampling_teacher: Model | None = None
    """The teacher of a hand-off in the pictures of samples."""
    base: Denoiser | None = None
    """The frozen weights of a student that is an adapter."""

    def model(self, tensors: dict[str, torch.Tensor]) -> Model:
        """The model with averaged weights; the file of its codec stands where it was read."""
        if self.base is not None and self.config.adapter is not None:
            tensors = merged(self.base.network.state_dict(), tensors, self.config.adapter)
        denoiser = build_denoiser(self.config)
        denoiser.network.load_state_dict(tensors)
        folder = None if self.codec_file is None else self.codec_file.parent
        model = Model(self.config, denoiser.eval().requires_grad_(False), folder)
        return model if self.sampling_teacher is None else model.with_teacher(self.sampling_teacher)


class StartingPoint(Protocol):
    """What distillation and pretraining do differently."""

    weights_dtype: torch.dtype | None
    """Of the weights in the model folder; None is that of training."""

    def read(self) -> None:
        """Read and check everything that the first round needs; nothing is written."""

    def round(self, number: int, previous: Path | None) -> RoundStart:
        """The start of round `number`; `previous` is the model folder of the round before."""

    def card(self, config: ModelConfig, progress: Progress) -> str:
        """README.md of the trained model; may complete the provenance in `config`."""
