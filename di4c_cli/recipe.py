"""The recipe: one pydantic model, composed of the schemas that stand beside their components."""

from __future__ import annotations

from typing import Literal

from pydantic import Field, model_validator

from di4c_cli.evaluation.config import EvaluationDefaults
from di4c_cli.latent.config import StudentLatentConfig
from di4c_cli.methods import AnyMethodConfig
from di4c_cli.methods.di4c_config import Di4CConfig
from di4c_cli.sampler.config import SamplingConfig
from di4c_cli.schema import CurrentName, Section
from di4c_cli.training.config import TrainingConfig


class StartConfig(Section):
    """A student that is trained first, by another recipe; the run continues with its weights."""

    recipe: CurrentName = Field(description="its recipe; teacher, data, labels, λ, precision, seed are as here")
    iterations: float = Field(1.0, gt=0, le=100, description="its training steps, relative to this recipe's")


class Recipe(Section):
    """How a teacher becomes a student."""

    kind: Literal["distill"] = Field("distill", description="the purpose of the file")
    name: CurrentName = Field(description="as in `di4c recipes`")
    summary: str = Field(description="one line about it")
    teacher: CurrentName = Field(description="name, Hub id, folder or file (`--teacher`)")
    data: str = Field("embedded", description="path, Hub dataset id, `embedded` or `teacher` (no data)")
    init_weights: Literal["ema", "live"] | None = Field(
        None, description="which weights of a file are the teacher's; none: those its authors evaluate"
    )
    student_weights: Literal["ema", "live"] | None = Field(
        None, description="which weights of that file the student starts from; none: the teacher's"
    )
    start: StartConfig | None = Field(None, description="a student to begin with; none: the teacher's weights")
    rounds: int = Field(1, ge=1, le=64, description="each round's student is the next round's teacher")
    seed: int = Field(0, ge=0, lt=2**31, description="of all draws")
    latent: StudentLatentConfig = Field(
        default_factory=lambda: StudentLatentConfig(), description="the mixture variable"
    )
    method: AnyMethodConfig = Field(default_factory=Di4CConfig, description="the training method")
    training: TrainingConfig = Field(default_factory=TrainingConfig, description="the training loop")
    sampling: SamplingConfig | None = Field(None, description="the student's defaults; none: the teacher's")
    evaluation: EvaluationDefaults = Field(default_factory=EvaluationDefaults, description="defaults of `di4c eval`")

    @model_validator(mode="after")
    def _latent_fits_method(self) -> Recipe:
        self.method.check_latent(self.latent, started=self.start is not None)
        self.method.check_rounds(self.rounds)
        if self.start is not None and (self.rounds > 1 or self.training.adapter is not None):
            raise ValueError("a recipe with `start` has one round and no adapter")
        return self
