"""The section `training` of recipes. This module does not import torch."""

from __future__ import annotations

from typing import Annotated, Any, Literal

from pydantic import Field, field_validator, model_validator

from di4c_cli.network.lora_config import AdapterConfig
from di4c_cli.schema import MAX_BATCH, MAX_ITERATIONS, MAX_SAMPLES, MAX_STEPS, MAX_THREADS, Section

Decay = Annotated[float, Field(ge=0, lt=1)]

RENAMED_KEYS = {"label_drop": "label_dropout", "teacher_share": "synthetic_share", "teacher_pool": "synthetic_pool"}
"""Keys of version 0.1 and the present ones."""


class OptimizerConfig(Section):
    """Adam or AdamW with a linear warm-up, then a constant or falling learning rate."""

    kind: Literal["adam", "adamw"] = Field("adam", description="Adam or AdamW")
    lr: float = Field(3e-4, gt=0, description="learning rate after the warm-up")
    betas: tuple[Decay, Decay] = Field((0.9, 0.999), description="decay of the two moments, each below 1")
    eps: float = Field(1e-8, gt=0, description="added to the denominator")
    weight_decay: float = Field(0.0, ge=0, le=1000, description="weight decay")
    warmup: int = Field(0, ge=0, le=MAX_ITERATIONS, description="iterations of linear warm-up")
    decay: Literal["none", "cosine"] = Field("none", description="after the warm-up: constant, or a cosine to zero")
    clip: float | None = Field(1.0, gt=0, description="gradient norm limit; none: no clipping")


class TrainingConfig(Section):
    """The loop."""

    iterations: int = Field(1000, ge=1, le=MAX_ITERATIONS, description="training steps a round")
    batch: int = Field(
        16, ge=1, le=MAX_BATCH, description="samples per iteration over all processes and accumulation steps"
    )
    micro_batch: int | None = Field(
        None, ge=1, le=MAX_BATCH, description="samples per process and backward pass; none: all at once"
    )
    optimizer: OptimizerConfig = Field(default_factory=OptimizerConfig, description="Adam and its learning rate")
    ema: float = Field(0.9999, ge=0, lt=1, description="decay of the averaged weights, which become the student")
    precision: Literal["fp32", "bf16", "fp16"] = Field("fp32", description="autocast in bf16 or fp16, or none")
    adapter: AdapterConfig | None = Field(
        None, description="`lora`: train small matrices beside the teacher's frozen weights; none: train all weights"
    )
    checkpoint_every: int = Field(500, ge=1, le=MAX_ITERATIONS, description="iterations between checkpoints")
    keep: int = Field(2, ge=1, le=MAX_ITERATIONS, description="checkpoints kept")
    activation_checkpointing: bool = Field(False, description="less memory, more time")
    compile: bool = Field(False, description="torch.compile of the student")
    dropout: float = Field(0.0, ge=0, lt=1, description="of the student at t; teacher and student at u run without")
    dropout_at_u: bool = Field(False, description="dropout of the student at u too, as in the authors' CIFAR-10 code")
    label_dropout: float = Field(
        0.1, ge=0, le=1, description="share of labels dropped; without it guidance is not distilled"
    )
    synthetic_share: float = Field(
        0.0, ge=0, le=1, description="share of the samples that the teacher generates instead of data"
    )
    synthetic_pool: int = Field(
        1024,
        ge=1,
        le=MAX_SAMPLES,
        description="different teacher samples in a round; without data, this number over `synthetic_share`",
    )
    synthetic_steps: int = Field(16, ge=1, le=MAX_STEPS, description="sampling steps of the teacher for these samples")
    flip: bool = Field(False, description="random horizontal flips (images)")
    crop: Literal["centre", "random"] = Field(
        "centre",
        description="square cut out of images of another shape before a VQGAN encodes them; `random`: one of each "
        "image, resized bilinearly, as in the authors' MaskGIT code",
    )
    workers: int | None = Field(
        None,
        ge=0,
        le=MAX_THREADS,
        description="threads that read, decode and encode the next batches during a step; 0: the loop reads; none: "
        "2 with a GPU, else 0",
    )
    sample_every: int = Field(
        0, ge=0, le=MAX_ITERATIONS, description="write samples every so many iterations; 0: never"
    )
    max_bad_steps: int = Field(
        20, ge=1, le=MAX_ITERATIONS, description="non-finite losses in a row before the run stops"
    )
    trackers: list[Literal["tensorboard", "wandb", "trackio"]] = Field(
        default_factory=list, description="other trackers of the metrics; none: metrics.jsonl only"
    )

    @field_validator("precision", mode="before")
    @classmethod
    def _old_name(cls, value: Any) -> Any:
        """`no` is the name of version 0.1 for fp32; YAML reads it as false."""
        return "fp32" if value in ("no", False) else value

    @model_validator(mode="after")
    def _half_base(self) -> TrainingConfig:
        """Autocast would keep a copy in bfloat16 of every frozen weight in float32."""
        half = self.precision == "bf16"
        if self.adapter is not None and self.adapter.base_precision is None:
            self.adapter.base_precision = "bf16" if half else "fp32"
        if self.adapter is not None and self.adapter.base_precision == "bf16" and not half:
            raise ValueError("adapter.base_precision bf16 needs precision bf16")
        return self
