"""config.json of a teacher or student folder: everything needed to rebuild the model, and where it came from."""

from __future__ import annotations

from typing import Any, Literal

from pydantic import BaseModel, ConfigDict, Field

from di4c_cli.latent.config import LatentConfig

FORMAT = 1


class SamplingDefaults(BaseModel):
    """What `sample` does when no flag says otherwise."""

    model_config = ConfigDict(extra="forbid")
    sampler: Literal["analytical", "confidence", "tau-leaping"] = Field(
        "analytical", description="which walk from noise to data"
    )
    steps: int = Field(4, ge=1, description="sampling steps")
    last: Literal["sample", "argmax"] = Field("sample", description="what the last step does")
    grid: Literal["uniform", "pixels"] = Field(
        "uniform", description="times: i/N, or the pixel grid from 0.01"
    )
    guidance: float = Field(0.0, description="classifier-free guidance scale, used where a label is given")
    lead: int | None = Field(
        None, ge=1, description="the student makes the first so many steps, its teacher the rest; none: all"
    )
    lead_to: float | None = Field(
        None, gt=0, lt=1, description="time that a leader's first step goes down to; none: as the grid says"
    )
    lead_shrink: float = Field(
        0.0, ge=0, le=1, description="in N steps it goes (2/N)^this times as far as that; 0: always as far"
    )
    lead_until: int | None = Field(
        None, ge=1, description="with more steps than this the teacher makes them all; none: never"
    )
    lead_labelled: int | None = Field(
        None, ge=0, description="the same where a label is given; none: a label makes no difference"
    )
    tile: int = Field(
        16, ge=1, le=4096, description="samples per network call; fixed, so that batches cannot matter"
    )


class ModelConfig(BaseModel):
    """One model folder."""

    model_config = ConfigDict(extra="forbid")
    di4c: int = FORMAT
    kind: Literal["teacher", "student"]
    name: str
    network: dict[str, Any]
    process: dict[str, Any]
    latent: LatentConfig | None = None
    labels: int | None = None
    codec: dict[str, Any] = Field(default_factory=lambda: {"type": "none"})
    sampling: SamplingDefaults = Field(default_factory=SamplingDefaults)
    provenance: dict[str, Any] = Field(default_factory=dict)
