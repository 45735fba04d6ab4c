"""The base class of every section of a recipe or of a result file, and the upper limits of numbers that users give.

The limits are far beyond any use and are no recommendation; what a machine's memory allows is checked where the model
is known (`di4c_cli.limits`).
"""

from __future__ import annotations

from typing import Annotated, Any

from pydantic import BaseModel, BeforeValidator, ConfigDict, field_validator

from di4c_cli.embedded import current_name
from di4c_cli.printable import storable

MAX_STEPS = 2**16
MAX_CORRECTOR_STEPS = 10_000
MAX_SAMPLES = 10_000_000
MAX_BATCH = 2**20
MAX_REPEATS = 1000
MAX_ITERATIONS = 10**9
MAX_LATENTS = 2**14
MAX_WIDTH = 2**14
MAX_THREADS = 1024
MAX_SEED = 2**63 - 1

CurrentName = Annotated[str, BeforeValidator(current_name)]
"""A name in a file; a task, teacher or recipe of version 0.1 gets its present name."""


class Section(BaseModel):
    """A section of a file; unknown keys, NaN and infinity are rejected."""

    model_config = ConfigDict(extra="forbid", validate_assignment=True, allow_inf_nan=False)

    @field_validator("*", mode="after")
    @classmethod
    def _storable(cls, value: Any) -> Any:
        return storable(value)
