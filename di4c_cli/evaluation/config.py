"""What an evaluation is asked to do: the recipe's defaults, and the values of one `di4c eval`. Imports no torch."""

from __future__ import annotations

from dataclasses import dataclass, field
from pathlib import Path
from typing import Annotated

from pydantic import Field

from di4c_cli.schema import MAX_SAMPLES, MAX_STEPS, Section


class EvaluationDefaults(Section):
    """What `di4c eval` does with a run of this recipe when no flag says otherwise."""

    steps: list[Annotated[int, Field(ge=1, le=MAX_STEPS)]] | None = Field(
        None, min_length=1, description="sampling steps to compare; none: the steps of its toy task or 1, 2, 4, 8"
    )
    samples: int | None = Field(
        None, ge=2, le=MAX_SAMPLES, description="samples for each of them; none: as in its toy task, or 1000"
    )


@dataclass(frozen=True)
class ScorerOptions:
    """What the user names for the scorers: a judge and its precision, a feature network, a reference, a device."""

    judge: str | None = None
    features: Path | None = None
    reference: Path | None = None
    device: str = "cpu"
    feature_input: str = "bytes"
    precision: str = "fp32"
    """Of a judge."""


@dataclass(frozen=True)
class EvaluationConfig:
    """One evaluation; None stands for the default of the protocol, the recipe or the toy task."""

    student: str | None = None
    teacher: str | None = None
    others: dict[str, str] = field(default_factory=dict)
    protocol: str | None = None
    steps: list[int] | None = None
    temperatures: list[float] | None = None
    block: int | None = None
    """Positions of a block; the models then make all of their steps without a hand-off."""
    dtypes: list[str] | None = None
    """Precisions of the draws; several make columns of their own."""
    labels: str | None = None
    """`uniform`, `none` or a class, for all models alike."""
    precision: str = "fp32"
    """Of the networks."""
    n: int | None = None
    limit: int | None = None
    seed: int = 0
    repeats: int | None = None
    """Independent repeats of every cell, with the seeds `seed`, `seed + 1`, …"""
    scorers: tuple[str, ...] | None = None
    """Registered names; None: those of the protocol, else the one that fits the model."""
    out: Path | None = None
    options: ScorerOptions = field(default_factory=ScorerOptions)
    prompts: Path | None = None
