"""The schema of pretraining recipes (`di4c pretrain`). This module does not import torch."""

from __future__ import annotations

from typing import Annotated, Any, ClassVar, Literal

from pydantic import BeforeValidator, Field, model_validator

from di4c_cli.embedded import current_name
from di4c_cli.methods.denoising_config import DenoisingConfig
from di4c_cli.recipe import Recipe
from di4c_cli.sampler.config import SamplingConfig
from di4c_cli.schema import CurrentName, Section
from di4c_cli.tasks.config import TaskName
from di4c_cli.training.config import TrainingConfig


class PretrainConfig(Section):
    """How a teacher is trained on data (`di4c pretrain`).

    Sizes that follow from the data may be left out: `symbols` of network and process, `shape` and `length` of images.
    """

    rounds: ClassVar[int] = 1

    kind: Literal["pretrain"] = Field("pretrain", description="the purpose of the file")
    name: CurrentName = Field(description="as in `di4c recipes`")
    summary: str = Field(description="one line about it")
    task: Annotated[TaskName | None, BeforeValidator(current_name)] = Field(
        None, description="the toy task whose embedded data it trains on"
    )
    data: str = Field("embedded", description="path of text or images, or `embedded`, the data of the task (`--data`)")
    held_out: str | None = Field(None, description="path of the held-out data; none: a part of the data (`--held-out`)")
    held_out_share: float = Field(
        0.05, gt=0, le=0.5, description="share of the data that is held out if there is no path"
    )
    tokenizer: str | None = Field(
        None, description="tokenizer.json of the text, or its folder; none: trained on the data (`--tokenizer`)"
    )
    vocabulary: int = Field(4096, ge=257, le=2**20, description="entries of a tokenizer that is trained on the data")
    network: dict[str, Any] = Field(description="type and sizes, as in config.json")
    process: dict[str, Any] = Field(description="type and settings, as in config.json")
    codec: dict[str, Any] = Field(default_factory=dict, description="config.json's codec entry of the teacher")
    labels: int | None = Field(None, ge=1, description="number of classes; none: unconditional")
    sampling: SamplingConfig = Field(default_factory=SamplingConfig, description="the teacher's sampling defaults")
    seed: int = Field(0, ge=0, lt=2**31, description="of weights and data order")
    method: DenoisingConfig = Field(default_factory=DenoisingConfig, description="the loss")
    training: TrainingConfig = Field(default_factory=TrainingConfig, description="the training loop")
    patience: int = Field(5, ge=1, description="evaluations without improvement before the training stops")
    evaluate_every: int = Field(200, ge=1, description="iterations between evaluations on held-out data")

    @model_validator(mode="after")
    def _without_teacher(self) -> PretrainConfig:
        if self.data == "teacher" or self.training.synthetic_share:
            raise ValueError("a pretraining has no teacher whose samples could be data")
        return self

    @property
    def model_name(self) -> str:
        """The name in the teacher's config.json: that of the toy task, or the last part of the recipe's."""
        return self.task if self.task and self.data == "embedded" else self.name.rpartition("/")[2]


RunRecipe = Recipe | PretrainConfig
"""The recipes that the training loop runs."""
