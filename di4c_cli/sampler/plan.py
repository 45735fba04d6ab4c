"""The sampling plan: every choice of one request, resolved once from the model's defaults and the flags.

Importing this module does not import torch.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping
from dataclasses import asdict, dataclass, fields
from typing import TYPE_CHECKING, Any, get_args

from di4c_cli.errors import UserError
from di4c_cli.sampler.config import HandoffConfig, SamplingConfig
from di4c_cli.schema import MAX_CORRECTOR_STEPS, MAX_STEPS

if TYPE_CHECKING:
    from torch import Tensor

    from di4c_cli.denoiser import Denoiser

LONG_SEQUENCE = 256
"""From this many positions on one sample fills a matrix product, so a tile of one costs nothing."""
MAX_LOGITS = {"cpu": 1 << 23, "gpu": 1 << 28}
"""Most logits that the head makes in one call: 32 MB, 1 GB."""
MAX_SYMBOLS = {"cpu": 1 << 14, "gpu": 1 << 18}
"""Most symbols of a batch unless its size is given."""
MAX_TILE = 4096
"""Samples per network call, as in config.json."""
LAST_PIXEL_TIME = 0.01
"""The last time before data on the pixel grid (section sampling)."""

CHOICES: dict[str, tuple[str, ...]] = {
    **{name: get_args(SamplingConfig.model_fields[name].annotation) for name in ("sampler", "last", "grid")},
    "dtype": ("float64", "float32"),
    "precision": ("fp32", "bf16"),
}
RANGES: dict[str, tuple[Callable[[float], bool], str, str]] = {
    "steps": (lambda v: 1 <= v <= MAX_STEPS, "{} sampling steps are impossible.", f"Use --steps 1 to {MAX_STEPS}."),
    "hybrid": (lambda v: v >= 0, "--hybrid {} is negative.", "Use --hybrid 0 or more."),
    "temperature": (lambda v: 0 < v < math.inf, "Temperature {} is not positive.", "Use a positive number."),
    "top_p": (lambda v: 0 < v <= 1, "top-p {} is not a probability.", "Use --top-p above 0, at most 1."),
    "guidance": (math.isfinite, "Guidance {} is not a number.", "Use a finite --guidance."),
    "handoff_time": (lambda v: 0 < v < 1, "Hand-off time {} is impossible.", "Use a time between 0 and 1."),
    "corrector": (
        lambda v: 0 <= v <= MAX_CORRECTOR_STEPS,
        "{} corrector steps are impossible.",
        f"Use --corrector 0 to {MAX_CORRECTOR_STEPS}.",
    ),
    "corrector_step": (lambda v: 0 < v <= 1, "Corrector step {} is impossible.", "Use a size in (0, 1]."),
    "tile": (lambda v: 0 <= v <= MAX_TILE, "A tile of {} samples is impossible.", f"Use --tile 0 to {MAX_TILE}."),
    "block": (lambda v: v >= 1, "Blocks of {} positions are impossible.", "Use --block 1 or more."),
    "head_rows": (lambda v: v >= 1, "The head needs at least one row, not {}.", "Leave head_rows out."),
}
"""For each number the test of its range, what to say if it fails, and what to do then."""


def check_ranges(values: Mapping[str, Any]) -> None:
    """Raise `UserError` for a value that no model allows; values that are None or missing are not checked."""
    given = {name: value for name, value in values.items() if value is not None}
    for name, allowed in CHOICES.items():
        if name in given and given[name] not in allowed:
            raise UserError(f"{name} is {given[name]!r}.", f"Choose one of: {', '.join(allowed)}.")
    for name, (fits, message, hint) in RANGES.items():
        if name in given and not fits(given[name]):
            raise UserError(message.format(given[name]), hint)
    steps = given.get("steps")
    if steps is not None and given.get("hybrid", 0) > steps:
        raise UserError(
            f"--hybrid {given['hybrid']} exceeds the {steps} sampling steps.", f"Use --hybrid 0 to {steps}."
        )
    if "handoff_time" in given and given.get("sampler") == "confidence":
        raise UserError("The confidence sampler has its own schedule.", "Leave the hand-off time out.")


@dataclass(frozen=True)
class SamplingPlan:
    """How one request is sampled. `SamplingPlan.resolve` makes it from a model's defaults and the flags.

    The first step goes down to time `handoff_time`, if given; the teacher makes the last `hybrid` steps. `dtype`
    float64 is exact; float32 is the published 32-bit Gumbel draw for masked processes and a 32-bit running sum for
    the others. `tile` samples go through the network at a time and at most `head_rows` rows through its head, so
    that a sample's bits do not depend on the batch (see `sampler.tiles`); `tile = 0` runs the batch as it comes.
    `precision` is that of the network: fp32 (on CUDA with TF32 products unless these are disallowed) or bf16. With
    `block` the free positions are filled in blocks of that many from left to right, which divide the steps equally.
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
    handoff_time: float | None = None
    corrector: int = 0
    corrector_step: float = 1e-4
    tile: int = 16
    head_rows: int = 1024
    precision: str = "fp32"
    block: int | None = None

    def __post_init__(self) -> None:
        check_ranges(asdict(self))

    @classmethod
    def resolve(
        cls,
        denoiser: Denoiser,
        config: SamplingConfig,
        labelled: bool = False,
        length: int | None = None,
        deterministic: bool = False,
        **flags: Any,
    ) -> SamplingPlan:
        """The plan of one request: the flags, else the model's defaults; a flag that is None is not given.

        The default guidance applies where a label is given, the default tile to sequences shorter than
        `LONG_SEQUENCE`. A GPU has no tiles unless the request is `deterministic`: it takes the batch as it comes. What
        this model cannot do is rejected here, before the first step.
        """
        values: dict[str, Any] = config.model_dump(exclude={"handoff"})
        if not labelled:
            values["guidance"] = 0.0
        kind = "cpu" if denoiser.device.type == "cpu" or deterministic else "gpu"
        if kind == "gpu":
            values["tile"] = 0
        elif (length or denoiser.length) >= LONG_SEQUENCE:
            values["tile"] = 1
        values["head_rows"] = default_head_rows(denoiser.symbols, MAX_LOGITS[kind])
        values |= {name: value for name, value in flags.items() if value is not None}
        unknown = sorted(set(values) - {field.name for field in fields(cls)})
        if unknown:
            raise UserError(f"There is no sampling option '{unknown[0]}'.", "See `di4c sample --help`.")
        if config.handoff is not None:
            values = _hand_off(config.handoff, labelled, values) | values
        plan = cls(**values)
        plan._check_model(denoiser, labelled)
        return plan

    def _check_model(self, denoiser: Denoiser, labelled: bool) -> None:
        """Raise `UserError` unless this model can be sampled this way."""
        masked = denoiser.process.mask is not None
        if self.sampler == "confidence" and not masked:
            raise UserError("The confidence sampler needs a masked process.", "Use --sampler analytical.")
        if self.sampler == "tau-leaping" and masked:
            raise UserError("τ-leaping needs a Gaussian or uniform process.", "Use --sampler analytical.")
        if self.corrector and masked:
            raise UserError("Corrector steps need a Gaussian or uniform process.", "Use --corrector 0.")
        if self.block and not masked:
            raise UserError("Blocks need a masked process.", "Leave --block out.")
        if self.block and self.hybrid:
            raise UserError("Blocks and a hand-off to the teacher exclude each other.", "Use --hybrid 0 with --block.")
        if self.block and self.dtype == "float32" and self.sampler == "analytical":
            raise UserError("Blocks are drawn in float64 only.", "Leave --sample-dtype out.")
        if self.dtype == "float32" and (self.corrector or self.sampler == "tau-leaping"):
            raise UserError("Poisson jumps are drawn in float64 only.", "Leave --sample-dtype out.")
        if self.guidance and not denoiser.labels:
            raise UserError("Guidance needs a model with class labels.", "Leave --guidance out.")
        if self.guidance and not labelled:
            raise UserError("Guidance needs a class to guide to.", "Add --label, or leave --guidance out.")
        if labelled and not denoiser.labels:
            raise UserError("This model has no class labels.", "Leave --label out.")

    def check_inputs(
        self, denoiser: Denoiser, label: Tensor | None, given: Tensor | None, teacher: Denoiser | None
    ) -> None:
        """Raise `UserError` unless labels, given symbols and teacher fit the model."""
        if label is not None:
            low, high, labels = int(label.min()), int(label.max()), denoiser.labels or 0
            if low < -1 or high >= labels:
                wrong = low if low < -1 else high
                raise UserError(f"Label {wrong} is out of range.", f"Labels go from 0 to {labels - 1}.")
        if given is not None and not -1 <= int(given.min()) <= int(given.max()) < denoiser.symbols:
            raise UserError(f"A given symbol is outside 0 to {denoiser.symbols - 1}.", "Use -1 where free.")
        if self.block is not None:
            self.blocks(denoiser.length if given is None else (given < 0).sum(-1))
        if self.hybrid and teacher is None:
            raise UserError("A hybrid needs the teacher.", "Name it with --teacher, or use --hybrid 0.")
        if self.hybrid and teacher is not None and teacher.process.config != denoiser.process.config:
            raise UserError("Teacher and student have different processes.", "Use the student's own teacher.")

    def blocks(self, free: int | Tensor) -> int:
        """Number of blocks for samples with that many `free` positions each; 1 without blocks.

        Rejects samples with different numbers of them and steps that do not divide equally.
        """
        if self.block is None:
            return 1
        few, most = (free, free) if isinstance(free, int) else (int(free.min()), int(free.max()))
        if few != most:
            problem = f"Samples with {few} and with {most} free positions have different blocks."
            raise UserError(problem, "Sample them one after the other.")
        count = max(1, -(-most // self.block))
        if self.steps % count:
            problem = f"{self.steps} steps cannot be divided over {count} blocks of {self.block} positions."
            raise UserError(problem, f"Use --steps {max(1, round(self.steps / count)) * count}.")
        return count

    def times(self, blocks: int = 1) -> list[float]:
        """t_0 = 0 < … < t_N = 1 of this plan, or of each of its blocks."""
        return times(self.steps // blocks, self.grid, self.handoff_time)

    def batch_size(self, length: int) -> int:
        """Samples per batch unless a size is given: whole tiles, at most `MAX_SYMBOLS` symbols."""
        tile, most = self.tile or 1, MAX_SYMBOLS["cpu" if self.tile else "gpu"]
        return tile * max(1, most // (length * tile))

    def settings(self) -> dict[str, Any]:
        """The plan as every result records it; options that are off are left out."""
        off: dict[str, Any] = {"guidance": 0.0, "temperature": 1.0, "top_p": 1.0, "hybrid": 0, "handoff_time": None}
        off["block"] = None
        off["precision"] = "fp32"
        off |= {"corrector": 0} if self.corrector else {"corrector": 0, "corrector_step": self.corrector_step}
        return {key: value for key, value in asdict(self).items() if key not in off or off[key] != value}


def default_head_rows(symbols: int, most: int = MAX_LOGITS["cpu"]) -> int:
    """Most rows per call of the head: a power of two from 16, on the CPU to 1024, within `most` logits if possible."""
    limit = 1024 if most == MAX_LOGITS["cpu"] else 1 << 20
    return max(16, min(limit, 1 << max(0, (most // symbols).bit_length() - 1)))


def _hand_off(handoff: HandoffConfig, labelled: bool, values: Mapping[str, Any]) -> dict[str, Any]:
    """`hybrid` and `handoff_time` of a hand-off student, unless the flags say otherwise."""
    steps = values["steps"]
    limit = handoff.max_steps
    if labelled and handoff.max_steps_labelled is not None:
        limit = handoff.max_steps_labelled
    teacher_only = limit is not None and steps > limit
    hybrid = values.get("hybrid", steps if teacher_only else max(0, steps - handoff.after))
    found = {"hybrid": hybrid}
    # the confidence sampler has its own schedule
    if handoff.time is not None and values["sampler"] != "confidence" and 0 < hybrid < steps:
        covered = (2 / steps) ** handoff.shrink
        found["handoff_time"] = handoff.time + (1 - handoff.time) * (1 - covered)
    return found


def times(steps: int, grid: str = "uniform", handoff_time: float | None = None) -> list[float]:
    """t_0 = 0 < t_1 < … < t_N = 1.

    `uniform`: t_i = i/N. `pixels`: t_i = 0.01 + 0.99 (i-1)/(N-1) for i ≥ 1; N = 1 is one step from t = 1.
    With `handoff_time` the first step goes from 1 to that time and the other steps share what is left.
    """
    if steps == 1:
        return [0.0, 1.0]
    if handoff_time is not None:
        if grid == "uniform" or steps == 2:
            return [*(handoff_time * i / (steps - 1) for i in range(steps)), 1.0]
        low = min(LAST_PIXEL_TIME, handoff_time / steps)
        return [0.0, *(low + (handoff_time - low) * i / (steps - 2) for i in range(steps - 1)), 1.0]
    if grid == "uniform":
        return [i / steps for i in range(steps + 1)]
    later = [LAST_PIXEL_TIME + (1 - LAST_PIXEL_TIME) * (i - 1) / (steps - 1) for i in range(1, steps)]
    return [0.0, *later, 1.0]
