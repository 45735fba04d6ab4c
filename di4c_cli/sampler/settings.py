"""How samples are drawn: plain values, checked once, without torch."""

from __future__ import annotations

import math
from dataclasses import asdict, dataclass, fields
from typing import Any, Protocol

from di4c_cli.errors import UserError

SAMPLERS = ("analytical", "confidence", "tau-leaping")
CHOICES = {
    "sampler": SAMPLERS,
    "last": ("sample", "argmax"),
    "grid": ("uniform", "pixels"),
    "dtype": ("float64", "float32"),
}
LONG = 256
"""From this many positions on one sample fills a matrix product, so a tile of one costs nothing."""

LOGITS = 1 << 23
"""Most logits made at a time."""


@dataclass(frozen=True)
class Settings:
    """One way of sampling. `dtype` float64 is exact; float32 is the published 32-bit Gumbel draw for masked
    processes and a 32-bit running sum for the others.

    The first step goes down to time `leap`, if given; the last `hybrid` steps are the teacher's.
    `tile` samples go through the network at a time and at most `head_rows` rows through its head, so that a
    sample's bits do not depend on the batch (see `sampler.tiles`); None chooses by length and symbols.
    `tile = 0` runs the batch as it comes, which is what training wants.
    """

    steps: int = 4
    sampler: str = "analytical"
    last: str = "sample"
    grid: str = "uniform"
    guidance: float = 0.0
    temperature: float = 1.0
    top_p: float = 1.0
    dtype: str = "float64"
    hybrid: int = 0
    leap: float | None = None
    corrector: int = 0
    corrector_step: float = 1e-4
    tile: int | None = None
    head_rows: int | None = None

    def __post_init__(self) -> None:
        for name, allowed in CHOICES.items():
            value = getattr(self, name)
            if value not in allowed:
                raise UserError(f"{name} is {value!r}.", f"Choose one of: {', '.join(allowed)}.")
        if self.steps < 1:
            raise UserError(f"{self.steps} sampling steps are too few.", "Use --steps 1 or more.")
        if not 0 <= self.hybrid <= self.steps:
            raise UserError(
                f"--hybrid {self.hybrid} asks for more teacher steps than the {self.steps} there are.",
                f"Use --hybrid 0 to {self.steps}.",
            )
        if not (self.temperature > 0 and math.isfinite(self.temperature)):
            raise UserError(f"Temperature {self.temperature} is not positive.", "Use --temperature above 0.")
        if not 0 < self.top_p <= 1:
            raise UserError(f"top-p {self.top_p} is not a probability.", "Use --top-p above 0, at most 1.")
        if not math.isfinite(self.guidance):
            raise UserError(f"Guidance {self.guidance} is not a number.", "Use a finite --guidance.")
        if self.leap is not None and not 0 < self.leap < 1:
            raise UserError(f"A first step to time {self.leap} is impossible.", "Use a time between 0 and 1.")
        if self.leap is not None and self.sampler == "confidence":
            raise UserError("The confidence sampler has its own schedule.", "Leave the leap out.")
        if self.corrector < 0 or not 0 < self.corrector_step <= 1:
            raise UserError(
                f"{self.corrector} corrector steps of size {self.corrector_step} are impossible.",
                "Use --corrector 0 or more and a step in (0, 1].",
            )
        if (self.tile or 0) < 0 or (self.head_rows is not None and self.head_rows < 1):
            raise UserError("Tiles must hold at least one sample and one row.", "Leave --tile out.")

    def tile_for(self, length: int) -> int:
        """Samples per network call for sequences of `length`; 0 means the whole batch."""
        if self.tile is not None:
            return self.tile
        return 1 if length >= LONG else 16

    def batch_for(self, length: int) -> int:
        """Samples under way at once when nobody says: whole tiles, some ten thousand symbols."""
        tile = self.tile_for(length) or 1
        return tile * max(1, 16384 // (length * tile))

    def head_rows_for(self, symbols: int) -> int:
        """Most rows per call of the head: enough to pay for reading its weights, at most 32 MB of logits."""
        if self.head_rows is not None:
            return self.head_rows
        return max(16, min(1024, 1 << max(0, (LOGITS // symbols).bit_length() - 1)))

    def named(self) -> dict[str, Any]:
        """The settings as they belong into every result; those that are off are left out."""
        off = {"guidance": 0.0, "temperature": 1.0, "top_p": 1.0, "hybrid": 0, "leap": None, "corrector": 0}
        values = {key: value for key, value in asdict(self).items() if key not in off or off[key] != value}
        if not self.corrector:
            values.pop("corrector_step")
        return values


class Defaults(Protocol):
    """A model's own way of sampling, as its config.json records it (`config.SamplingDefaults`)."""

    def model_dump(self) -> dict[str, Any]:
        """Its fields, named as those of `Settings`."""


def resolve(
    defaults: Defaults, length: int, steps: int | None = None, labelled: bool = False, **options: Any
) -> Settings:
    """The settings for one request: what is asked for, else the model's defaults. None is not asking.

    A default guidance needs a label; without one the model is sampled as it is. The default tile is meant for
    short sequences. A student that only leads leaves the other steps to its teacher (`hybrid`).
    """
    values = defaults.model_dump()
    parts = "lead", "lead_to", "lead_shrink", "lead_until", "lead_labelled"
    lead, to, shrink, until, until_labelled = (values.pop(name, None) for name in parts)
    if labelled and until_labelled is not None:
        until = until_labelled
    if not labelled:
        values["guidance"] = 0.0
    if length >= LONG:
        values["tile"] = None
    values |= {key: value for key, value in options.items() if value is not None}
    if steps is not None:
        values["steps"] = steps
    if lead is not None:
        count = values["steps"]
        alone = until is not None and count > until
        values.setdefault("hybrid", count if alone else max(0, count - lead))
        own = values.get("sampler") == "confidence"  # has its own schedule
        if to is not None and not own and 0 < values["hybrid"] < count:
            values.setdefault("leap", to + (1 - to) * (1 - (2 / count) ** (shrink or 0.0)))
    unknown = sorted(set(values) - {field.name for field in fields(Settings)})
    if unknown:
        raise UserError(f"There is no sampling option '{unknown[0]}'.", "See `di4c sample --help`.")
    return Settings(**values)
