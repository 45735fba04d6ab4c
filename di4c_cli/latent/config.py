"""The section `latent` of recipes and of config.json. This module does not import torch."""

from __future__ import annotations

from typing import Annotated, Any, Literal

from pydantic import BaseModel, ConfigDict, Field, model_validator

RENAMED_KEYS = {"law": "prior=learned with latent.prior_width"}
"""Keys of version 0.1 and the present ones."""


class LatentConfig(BaseModel):
    """How λ is drawn and how it enters the network."""

    model_config = ConfigDict(extra="forbid", validate_assignment=True, allow_inf_nan=False)
    dim: int = Field(1, ge=1, le=4096, description="numbers in λ; with inject `local`, at every position")
    distribution: Literal["uniform", "normal"] = Field("uniform", description="on [0, 1), or standard normal")
    inject: Literal["token", "film", "field", "local"] = Field(
        "token",
        description="as one more token, as a modulation of every block, as a vector at every position; "
        "`local`: every position has its own numbers",
    )
    features: Literal["sinusoid", "raw"] | None = Field(
        None, description="what the network sees of λ; none: raw if λ has several numbers, else sinusoid"
    )
    prior: Literal["standard", "learned"] = Field(
        "standard", description="`standard`: λ is the noise; `learned`: a small network maps the noise to λ, given x_t"
    )
    prior_width: int = Field(256, ge=1, le=4096, description="hidden width of the learned prior")

    @model_validator(mode="after")
    def _learned_prior_is_normal(self) -> LatentConfig:
        if self.prior == "learned" and self.distribution != "normal":
            raise ValueError("a learned prior needs distribution: normal")
        return self

    @property
    def presentation(self) -> str:
        """`features` with its default filled in."""
        if self.features is not None:
            return self.features
        return "raw" if self.dim > 1 or self.inject == "local" else "sinusoid"

    @property
    def is_one_uniform_number(self) -> bool:
        """Whether λ can be stratified."""
        return self.dim == 1 and self.distribution == "uniform" and self.inject != "local"


def upgrade_latent(section: dict[str, Any]) -> dict[str, Any]:
    """The `latent` section of a 0.1 config.json with the keys of today."""
    kept = {key: value for key, value in section.items() if key != "law"}
    if section.get("law") is not None:
        kept |= {"prior": "learned", "prior_width": section["law"]}
    return kept


class StudentLatentConfig(LatentConfig):
    """λ of the student and the initialisation of its layers."""

    init: Literal["default", "zero"] | Annotated[float, Field(ge=0)] = Field(
        "default",
        description="λ layers at the start: `default` is the paper's choice, a number is the std of the last layer",
    )

    def stored(self) -> LatentConfig:
        """The part that config.json keeps."""
        return LatentConfig(**self.model_dump(exclude={"init"}))
