"""The section `training.adapter` of recipes and `adapter` of config.json. This module does not import torch."""

from __future__ import annotations

from typing import Any, Literal

from pydantic import Field, model_validator

from di4c_cli.schema import MAX_WIDTH, Section


class AdapterConfig(Section):
    """A low-rank adapter: W + alpha / rank · B A beside every chosen linear layer, whose W is frozen."""

    type: Literal["lora"] = Field("lora", description="the kind of adapter")
    rank: int = Field(16, ge=1, le=MAX_WIDTH, description="rank of B A")
    alpha: float = Field(16.0, gt=0, le=1e6, description="scale of B A is alpha / rank")
    targets: list[str] = Field(
        default_factory=list, description="last parts of the names of linear layers; none: all but the output layer"
    )
    base_precision: Literal["fp32", "bf16"] | None = Field(
        None,
        description="of the frozen weights of teacher and student; none: bf16 with training.precision bf16 "
        "(Llama- and BERT-like networks only)",
    )

    @model_validator(mode="before")
    @classmethod
    def _by_type_alone(cls, section: Any) -> Any:
        return {"type": section} if isinstance(section, str) else section

    @property
    def scale(self) -> float:
        """The factor of B A."""
        return self.alpha / self.rank
