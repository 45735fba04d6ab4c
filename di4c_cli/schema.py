"""The base class of every section of a recipe or of a result file."""

from __future__ import annotations

from pydantic import BaseModel, ConfigDict


class Section(BaseModel):
    """A section of a file; unknown keys, NaN and infinity are rejected."""

    model_config = ConfigDict(extra="forbid", validate_assignment=True, allow_inf_nan=False)
