"""The recipe: one pydantic model, composed of the schemas that stand beside their components."""

from __future__ import annotations

from typing import Annotated, Any, Literal

from pydantic import Field, model_validator

from di4c_cli.config import SamplingDefaults
from di4c_cli.latent.config import StudentLatentConfig
from di4c_cli.methods import AnyMethodConfig
from di4c_cli.methods.di4c_config import Di4CConfig
from di4c_cli.schema import Section
from di4c_cli.training.config import TrainingConfig


class Evaluation(Section):
    """What `di4c eval` of a run of this recipe does when no flag says otherwise."""

    steps: list[Annotated[int, Field(ge=1)]] | None = Field(
        None, min_length=1, description="sampling steps to compare; none: as for every model of its kind"
    )
    samples: int | None = Field(None, ge=2, description="samples for each of them; none: likewise")


class Recipe(Section):
    """How a teacher becomes a student."""

    kind: Literal["distill"] = Field("distill", description="the purpose of the file")
    name: str = Field(description="as in `di4c recipes`")
    summary: str = Field(description="one line about it")
    teacher: str = Field(description="name, Hub id, folder or file (`--teacher`)")
    data: str = Field("embedded", description="path, Hub dataset id, `embedded` or `teacher` (no data)")
    init_weights: Literal["ema", "live"] | None = Field(
        None,
        description="which weights of a file are the teacher's; none: those its authors evaluate",
    )
    rounds: int = Field(1, ge=1, le=64, description="each round's student is the next round's teacher")
    seed: int = Field(0, ge=0, lt=2**31, description="of all draws")
    latent: StudentLatentConfig = Field(
        default_factory=lambda: StudentLatentConfig(), description="the mixture variable"
    )
    method: AnyMethodConfig = Field(default_factory=Di4CConfig, description="the training method")
    training: TrainingConfig = Field(default_factory=TrainingConfig, description="the training loop")
    sampling: SamplingDefaults | None = Field(None, description="the student's defaults; none: the teacher's")
    evaluation: Evaluation = Field(default_factory=Evaluation, description="defaults of `di4c eval`")

    @model_validator(mode="after")
    def _latent_fits_method(self) -> Recipe:
        self.method.check_latent(self.latent)
        return self


class Tokenizer(Section):
    """How the VQGAN of a world and the classifier that judges it were trained."""

    iterations: int = Field(ge=1, description="training steps of the VQGAN")
    batch: int = Field(ge=1, description="images a step")
    lr: float = Field(gt=0, description="learning rate")
    classifier_iterations: int = Field(ge=1, description="training steps of the classifier")


class Pretrain(Section):
    """How an embedded teacher was made (`di4c pretrain`)."""

    kind: Literal["pretrain"] = Field("pretrain", description="what the file is for")
    name: str = Field(description="as in `di4c recipes`")
    summary: str = Field(description="one line about it")
    world: Literal["tiny-digits", "tiny-pixels", "tiny-vq", "tiny-text"] = Field(
        description="the embedded data it trains on"
    )
    network: dict[str, Any] = Field(description="type and sizes, as in config.json")
    process: dict[str, Any] = Field(description="type and settings, as in config.json")
    codec: dict[str, Any] = Field(
        default_factory=dict, description="config.json's codec entry of the teacher"
    )
    labels: int | None = Field(None, ge=1, description="number of classes; none: unconditional")
    vqgan: Tokenizer | None = Field(
        None, description="`iterations`, `batch`, `lr` and `classifier_iterations` of the VQGAN, if any"
    )
    sampling: SamplingDefaults = Field(
        default_factory=SamplingDefaults, description="the teacher's sampling defaults"
    )
    seed: int = Field(0, ge=0, lt=2**31, description="of weights and data order")
    training: TrainingConfig = Field(default_factory=TrainingConfig, description="the loop")
    patience: int = Field(5, ge=1, description="evaluations without improvement before the training stops")
    evaluate_every: int = Field(200, ge=1, description="iterations between evaluations on held-out data")
    time_low: float = Field(0.0, ge=0, lt=1, description="smallest time trained on")
