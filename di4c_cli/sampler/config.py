"""The `sampling` section of a recipe and of config.json: how a model samples unless a flag says otherwise."""

from __future__ import annotations

from typing import Any, Literal

from pydantic import BaseModel, ConfigDict, Field

from di4c_cli.schema import MAX_STEPS

RENAMED_KEYS = {
    "lead": "handoff.after",
    "lead_to": "handoff.time",
    "lead_shrink": "handoff.shrink",
    "lead_until": "handoff.max_steps",
    "lead_labelled": "handoff.max_steps_labelled",
}
"""Keys of this section in di4c 0.1 and what they are called now."""


class HandoffConfig(BaseModel):
    """The student makes the first steps, its teacher the rest."""

    model_config = ConfigDict(extra="forbid")
    after: int = Field(1, ge=1, le=MAX_STEPS, description="steps that the student makes before its teacher takes over")
    time: float | None = Field(None, gt=0, lt=1, description="time that the first step goes down to; none: the grid's")
    shrink: float = Field(0.0, ge=0, le=1, description="in N steps the first one covers (2/N)^shrink of that distance")
    max_steps: int | None = Field(
        None, ge=1, description="with more steps than this the teacher makes all of them; none: no limit"
    )
    max_steps_labelled: int | None = Field(
        None, ge=0, description="`max_steps` for samples with a label; none: the same as without a label"
    )


class SamplingConfig(BaseModel):
    """A model's sampling defaults; the flags of `di4c sample` override them."""

    model_config = ConfigDict(extra="forbid")
    sampler: Literal["analytical", "confidence", "tau-leaping"] = Field(
        "analytical", description="kind of reverse step"
    )
    steps: int = Field(4, ge=1, le=MAX_STEPS, description="sampling steps")
    last: Literal["sample", "argmax"] = Field("sample", description="what the last step does")
    grid: Literal["uniform", "pixels"] = Field("uniform", description="times: i/N, or the pixel grid from 0.01")
    guidance: float = Field(0.0, description="classifier-free guidance scale, used where a label is given")
    handoff: HandoffConfig | None = Field(
        None, description="where the teacher takes over; none: the student makes every step"
    )
    tile: int = Field(
        16, ge=1, le=4096, description="samples per network call; fixed, so that samples do not depend on the batch"
    )


def upgrade_sampling(section: dict[str, Any]) -> dict[str, Any]:
    """The `sampling` section of a 0.1 config.json with the keys of today."""
    kept = {key: value for key, value in section.items() if key not in RENAMED_KEYS}
    if section.get("lead") is not None:
        old = {key: value for key, value in section.items() if key in RENAMED_KEYS and value is not None}
        kept["handoff"] = {RENAMED_KEYS[key].removeprefix("handoff."): value for key, value in old.items()}
    return kept
