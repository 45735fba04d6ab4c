"""The schema of pretraining recipes (`di4c pretrain`). This module does not import torch."""

from __future__ import annotations

from collections.abc import Collection
from typing import Annotated, Any, ClassVar, Literal

from pydantic import BeforeValidator, Field, model_validator

from di4c_cli.embedded import current_name
from di4c_cli.methods.denoising_config import DenoisingConfig
from di4c_cli.recipe import Recipe
from di4c_cli.sampler.config import SamplingConfig
from di4c_cli.schema import CurrentName, Section
from di4c_cli.tasks.config import TaskName
from di4c_cli.training.config import TrainingConfig

OF_THE_TEACHER = ("network", "process", "codec", "labels", "tokenizer")
"""Keys that describe the model, so that a model to start from replaces them."""


def check_start(keys: Collection[str]) -> None:
    """Raise ValueError if `keys` describe a model although there is one to start from."""
    found = next((key for key in keys if key.partition(".")[0] in (*OF_THE_TEACHER, "vocabulary", "sampling")), None)
    if found is not None:
        raise ValueError(f"{found} and a teacher exclude each other: the training goes on with the teacher's own")


class PretrainConfig(Section):
    """How a teacher is trained on data (`di4c pretrain`).

    Sizes that follow from the data may be left out: `symbols` of network and process, `shape` and `length` of images.
    With `teacher` the training starts from that model, which replaces network, process, codec, labels and sampling.
    """

    rounds: ClassVar[int] = 1

    kind: Literal["pretrain"] = Field("pretrain", description="the purpose of the file")
    name: CurrentName = Field(description="as in `di4c recipes`")
    summary: str = Field(description="one line about it")
    teacher: CurrentName | None = Field(
        None, description="model to start from: name, Hub id, folder or file; none: fresh weights (`--teacher`)"
    )
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
    network: dict[str, Any] = Field(default_factory=dict, description="type and sizes, as in config.json")
    process: dict[str, Any] = Field(default_factory=dict, description="type and settings, as in config.json")
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
            raise ValueError("a pretraining learns from data, and no teacher's samples are drawn")
        return self

    @model_validator(mode="after")
    def _network_or_teacher(self) -> PretrainConfig:
        if self.teacher is None and not (self.network and self.process):
            raise ValueError("network and process, or the teacher that has them, are missing")
        if self.teacher is not None:
            check_start([name for name in OF_THE_TEACHER if getattr(self, name)])
        return self

    @property
    def model_name(self) -> str:
        """The name in the teacher's config.json: that of the toy task, or the last part of the recipe's."""
        return self.task if self.task and self.data == "embedded" else self.name.rpartition("/")[2]


RunRecipe = Recipe | PretrainConfig
"""The recipes that the training loop runs."""
