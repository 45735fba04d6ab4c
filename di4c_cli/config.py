"""config.json of a teacher or student folder: everything needed to rebuild the model, and where it came from."""

from __future__ import annotations

from typing import Any, Literal

from pydantic import BaseModel, ConfigDict, Field

FORMAT = 1


class LatentConfig(BaseModel):
    """How λ is drawn and how it enters the network."""

    model_config = ConfigDict(extra="forbid")
    dim: int = Field(1, ge=1, le=4096)
    distribution: Literal["uniform", "normal"] = "uniform"
    inject: Literal["token", "film"] = "token"
    features: Literal["sinusoid", "raw"] | None = None


class SamplingDefaults(BaseModel):
    """What `sample` does when no flag says otherwise."""

    model_config = ConfigDict(extra="forbid")
    sampler: Literal["analytical", "confidence", "tau-leaping"] = "analytical"
    steps: int = Field(4, ge=1)
    last: Literal["sample", "argmax"] = "sample"
    grid: Literal["uniform", "pixels"] = "uniform"
    guidance: float = 0.0
    lead: int | None = Field(
        None, ge=1, description="the student makes the first so many steps, its teacher the rest; none: all"
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
