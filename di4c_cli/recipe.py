"""The recipe: one pydantic model that is the YAML file, the source of the flags and their documentation."""

from __future__ import annotations

from typing import Annotated, Literal

from pydantic import BaseModel, ConfigDict, Field, model_validator

from di4c_cli.config import LatentConfig, SamplingDefaults
from di4c_cli.evaluation.config import EvaluationDefaults

Weight = Annotated[float, Field(ge=0)]
Decay = Annotated[float, Field(ge=0, lt=1)]


class Part(BaseModel):
    """A section of a recipe; unknown keys and numbers that are none are refused."""

    model_config = ConfigDict(extra="forbid", validate_assignment=True, allow_inf_nan=False)


class Latent(LatentConfig):
    """λ of the student."""

    init: Literal["default", "zero"] | Weight = Field(
        "default",
        description="λ parts at the start: `default` is the paper's choice, a number the std of the last layer",
    )


class Alpha(Part):
    """Weight α_t of the correlation term on data."""

    kind: Literal["zero", "const", "linear", "sigmoid"] = Field(
        "sigmoid", description="0, 1, t, or g(t) = 1 / (1 + exp(10 - 20 t))"
    )
    scale: float = Field(1.0, ge=0, description="factor in front of it")


class Span(Part):
    """A range of times; `low = high` is a constant."""

    low: float = Field(ge=0, le=1, description="smallest value")
    high: float = Field(ge=0, le=1, description="largest value")

    @model_validator(mode="after")
    def _ordered(self) -> Span:
        if self.low > self.high:
            raise ValueError(f"low {self.low} is above high {self.high}")
        return self


class Step(Span):
    """A range of step lengths; their logarithm is drawn, so none is 0."""

    low: float = Field(gt=0, le=1, description="smallest value")
    grows: bool = Field(
        False, description="rise from `low` to `high` over a round's training, instead of drawing in between"
    )


class Delta(Span):
    """Small times δ of the distillation term; δ = low with probability `at_low`, else uniform in the range."""

    at_low: float = Field(1.0, ge=0, le=1, description="probability of exactly `low`")


class Times(Part):
    """Distribution of t."""

    low: float = Field(
        0.0, ge=0, lt=1, description="t is uniform in [low, 1]; with branch `both`, above δ.low + Δt"
    )
    grid: int | None = Field(None, ge=2, description="times are multiples of 1/grid, rounded up (SDTT: 1024)")
    small_share: float | None = Field(
        None, ge=0, le=1, description="probability that t falls below δ (SDTT: 0.3); none: uniform"
    )
    one_share: float = Field(0.0, ge=0, le=1, description="probability that t is 1, where nothing is known")


class Posterior(Part):
    """An amortised posterior q(λ|x0, xt): its bound replaces blind draws of λ (docs/frontier.md)."""

    weight: float = Field(1.0, gt=0, description="of the bound in the loss")
    width: int = Field(256, ge=1, description="hidden width of q")
    draws: int = Field(
        1, ge=1, description="K, draws from q a sample; more than one: the importance-weighted bound"
    )
    floor: float = Field(0.05, ge=0, le=1, description="price of λ, per nat, at the start")
    rise: Span = Field(
        default_factory=lambda: Span(low=0.25, high=0.6),
        description="parts of the training between which the price rises to 1",
    )


class Objective(Part):
    """The Di4C loss: distil + consis + α_t corr + marginal (paper sections 3, A, F)."""

    latents: int = Field(16, ge=1, description="L, λ draws per sample (M = N = L)")
    stratified: bool = Field(
        False, description="one λ from each of L equal parts of [0, 1); for λ of one uniform number"
    )
    branch: Literal["both", "split"] = Field(
        "split",
        description="`both`: distil at its own δ and consis at t (eq. loss-cifar10); `split`: t ≤ δ distils",
    )
    distil_weight: Weight | Literal["1/step"] = Field(1.0, description="`1/step` is 1/Δt (eq. loss-maskgit)")
    consis_weight: float = Field(1.0, ge=0, description="weight of the consistency term")
    marginal_weight: float = Field(1.0, ge=0, description="weight of the marginal term")
    control_variate: Literal["marginal", "convex", "none"] = Field(
        "marginal", description="what steadies the consistency term; `none` is the paper's w/o CV"
    )
    alpha: Alpha = Field(default_factory=Alpha, description="weight of the correlation term on data")
    delta: Delta = Field(
        default_factory=lambda: Delta(low=0.02, high=0.02), description="small times of the distillation term"
    )
    step: Step = Field(
        default_factory=lambda: Step(low=0.05, high=0.05),
        description="Δt, log-uniform in the range, or growing through it",
    )
    time: Times = Field(default_factory=Times, description="distribution of t")
    teacher_step: Literal["analytical", "confidence"] = Field(
        "analytical", description="how the teacher goes from x_t to x_u"
    )
    reference: Literal["data", "teacher"] = Field(
        "data", description="where x_t comes from; `teacher` needs no data"
    )
    reference_steps: int = Field(
        16, ge=1, description="grid of the teacher's trajectory when reference is `teacher`"
    )
    posterior: Posterior | None = Field(None, description="amortised posterior of λ; none: prior draws")
    chunk_mb: float = Field(64.0, gt=0, description="memory of one chunk of logits")
    cache_mb: float = Field(
        256.0, ge=0, description="memory kept between the loss and its gradient; beyond it, recomputed"
    )


class Optimizer(Part):
    """Adam or AdamW with a linear warm-up, then a constant or falling learning rate."""

    kind: Literal["adam", "adamw"] = Field("adam", description="which of the two")
    lr: float = Field(3e-4, gt=0, description="learning rate after the warm-up")
    betas: tuple[Decay, Decay] = Field((0.9, 0.999), description="decay of the two moments, each below 1")
    eps: float = Field(1e-8, gt=0, description="added to the denominator")
    weight_decay: float = Field(0.0, ge=0, description="pull of the weights towards zero")
    warmup: int = Field(0, ge=0, description="iterations of linear warm-up")
    decay: Literal["none", "cosine"] = Field(
        "none", description="after the warm-up: constant, or a cosine to zero"
    )
    clip: float | None = Field(1.0, gt=0, description="gradient norm limit; none: no clipping")


class Training(Part):
    """The loop."""

    iterations: int = Field(1000, ge=1, description="training steps a round")
    batch: int = Field(
        16, ge=1, description="samples per iteration over all processes and accumulation steps"
    )
    micro_batch: int | None = Field(
        None, ge=1, description="samples per process and backward pass; none: all at once"
    )
    optimizer: Optimizer = Field(default_factory=Optimizer, description="how weights follow the gradient")
    ema: float = Field(
        0.9999, ge=0, lt=1, description="decay of the averaged weights, which the student gets"
    )
    precision: Literal["no", "bf16", "fp16"] = Field("no", description="autocast; `no` is float32")
    checkpoint_every: int = Field(500, ge=1, description="iterations between checkpoints")
    keep: int = Field(2, ge=1, description="checkpoints kept")
    activation_checkpointing: bool = Field(False, description="less memory, more time")
    compile: bool = Field(False, description="torch.compile of the student")
    dropout: float = Field(
        0.0, ge=0, lt=1, description="of the student at t; teacher and student at u run without"
    )
    label_drop: float = Field(
        0.1, ge=0, le=1, description="share of labels dropped; without it guidance is not distilled"
    )
    teacher_share: float = Field(
        0.0, ge=0, le=1, description="share of samples that are the teacher's own instead of data"
    )
    teacher_pool: int = Field(
        1024,
        ge=1,
        description="how many of those are drawn, in reference_steps steps, before a round; / share without data",
    )
    flip: bool = Field(False, description="random horizontal flips (images)")
    sample_every: int = Field(0, ge=0, description="write samples every so many iterations; 0: never")
    max_bad_steps: int = Field(20, ge=1, description="non-finite losses in a row before the run stops")
    trackers: list[Literal["tensorboard", "wandb", "trackio"]] = Field(
        default_factory=list, description="where else the metrics go; none: metrics.jsonl only"
    )


class Recipe(Part):
    """How a teacher becomes a student."""

    kind: Literal["distill"] = Field("distill", description="what the file is for")
    name: str = Field(description="as in `di4c recipes`")
    summary: str = Field(description="one line about it")
    teacher: str = Field(description="name, Hub id, folder or file (`--teacher`)")
    data: str = Field("embedded", description="path, Hub dataset id, `embedded` or `teacher` (no data)")
    init_weights: Literal["ema", "live"] | None = Field(
        None,
        description="which of a file's weights are the teacher's; none: those its authors evaluate",
    )
    rounds: int = Field(1, ge=1, le=64, description="each student teaches the next")
    seed: int = Field(0, ge=0, lt=2**31, description="of all draws")
    latent: Latent = Field(default_factory=lambda: Latent(), description="the mixture variable")
    objective: Objective = Field(default_factory=Objective, description="the loss")
    training: Training = Field(default_factory=Training, description="the loop")
    sampling: SamplingDefaults | None = Field(None, description="the student's defaults; none: the teacher's")
    evaluation: EvaluationDefaults = Field(
        default_factory=EvaluationDefaults, description="defaults of `di4c eval`"
    )

    @model_validator(mode="after")
    def _without_data(self) -> Recipe:
        """No data and the teacher's own trajectory are the same wish, whichever way it was said."""
        if self.data == "teacher" and self.objective.reference != "teacher":
            self.objective.reference = "teacher"
        elif self.objective.reference == "teacher" and self.data != "teacher":
            self.data = "teacher"
        return self

    @model_validator(mode="after")
    def _parts(self) -> Recipe:
        """An interval has equal parts; a vector of normal numbers has none."""
        one = self.latent.dim == 1 and self.latent.distribution == "uniform" and self.latent.inject != "local"
        if self.objective.stratified and not one:
            raise ValueError(
                "objective.stratified needs λ of one uniform number, as the presets `paper` have; "
                "--set objective.stratified=false does without it"
            )
        return self

    @model_validator(mode="after")
    def _smooth(self) -> Recipe:
        """A posterior moves λ by small amounts: λ must be normal, and not spread over sinusoids."""
        if self.objective.posterior is None:
            if self.latent.law is not None:
                raise ValueError(
                    "latent.law learns from objective.posterior; --set latent.law=null does without it"
                )
            return self
        if self.latent.distribution != "normal" or self.latent.features == "sinusoid":
            raise ValueError(
                "objective.posterior needs latent.distribution: normal and latent.features: raw; "
                "--set objective.posterior=null does without it"
            )
        if self.latent.features is None:
            self.latent.features = "raw"
        return self
