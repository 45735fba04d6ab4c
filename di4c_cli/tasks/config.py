"""The schema of pretraining recipes (`di4c pretrain`). This module does not import torch."""

from __future__ import annotations

from typing import Any, Literal, get_args

from pydantic import Field

from di4c_cli.sampler.config import SamplingConfig
from di4c_cli.schema import MAX_ITERATIONS, Section
from di4c_cli.training.config import TrainingConfig

TaskName = Literal["tiny-digits", "tiny-pixels", "tiny-vq", "tiny-text"]
TASK_NAMES: tuple[TaskName, ...] = get_args(TaskName)


class PretrainConfig(Section):
    """How the teacher of a toy task is trained (`di4c pretrain`)."""

    kind: Literal["pretrain"] = Field("pretrain", description="the purpose of the file")
    name: str = Field(description="as in `di4c recipes`")
    summary: str = Field(description="one line about it")
    task: TaskName = Field(description="the toy task whose embedded data it trains on")
    network: dict[str, Any] = Field(description="type and sizes, as in config.json")
    process: dict[str, Any] = Field(description="type and settings, as in config.json")
    codec: dict[str, Any] = Field(default_factory=dict, description="config.json's codec entry of the teacher")
    labels: int | None = Field(None, ge=1, le=2**20, description="number of classes; none: unconditional")
    sampling: SamplingConfig = Field(default_factory=SamplingConfig, description="the teacher's sampling defaults")
    seed: int = Field(0, ge=0, lt=2**31, description="of weights and data order")
    training: TrainingConfig = Field(default_factory=TrainingConfig, description="the loop")
    patience: int = Field(
        5, ge=1, le=MAX_ITERATIONS, description="evaluations without improvement before the training stops"
    )
    evaluate_every: int = Field(
        200, ge=1, le=MAX_ITERATIONS, description="iterations between evaluations on held-out data"
    )
    time_low: float = Field(0.0, ge=0, lt=1, description="smallest time trained on")
