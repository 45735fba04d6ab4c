"""config.json of a teacher or student folder: everything needed to rebuild the model, and where it came from."""

from __future__ import annotations

from typing import Any, Literal

from pydantic import BaseModel, ConfigDict, Field, model_validator

from di4c_cli.sampler.config import SamplingConfig, upgrade_sampling

FORMAT = 2
"""Of config.json; `upgrade` reads format 1, which di4c 0.1 wrote."""


class LatentConfig(BaseModel):
    """How λ is drawn and how it enters the network."""

    model_config = ConfigDict(extra="forbid")
    dim: int = Field(1, ge=1, le=4096, description="numbers in λ; with inject `local`, at every position")
    distribution: Literal["uniform", "normal"] = Field("uniform", description="on [0, 1), or standard normal")
    inject: Literal["token", "film", "field", "local"] = Field(
        "token",
        description="as one more token, as a modulation of every block, as a vector at every position; "
        "`local`: every position has numbers of its own",
    )
    features: Literal["sinusoid", "raw"] | None = Field(
        None, description="how λ is presented to the network; none: raw if there are several numbers"
    )
    law: int | None = Field(
        None,
        ge=1,
        le=4096,
        description="width of a small network that makes λ like the posterior's from noise; none: λ is the noise",
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
    sampling: SamplingConfig = Field(default_factory=SamplingConfig)
    provenance: dict[str, Any] = Field(default_factory=dict)

    @model_validator(mode="before")
    @classmethod
    def _upgraded(cls, config: Any) -> Any:
        return upgrade(config) if isinstance(config, dict) else config


def upgrade(config: dict[str, Any]) -> dict[str, Any]:
    """A config.json of an older format in the keys of today, section by section; provenance stays as recorded."""
    if config.get("di4c") != 1:
        return config
    config = {**config, "di4c": FORMAT}
    if isinstance(config.get("sampling"), dict):
        config["sampling"] = upgrade_sampling(config["sampling"])
    return config
