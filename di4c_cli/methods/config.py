"""What the sections `method` of all methods have in common. This module does not import torch."""

from __future__ import annotations

from typing import TYPE_CHECKING, ClassVar

from pydantic import Field, model_validator

from di4c_cli.schema import MAX_ITERATIONS, Section

if TYPE_CHECKING:
    from di4c_cli.latent.config import LatentConfig


class MethodConfig(Section):
    """Base of the methods' sections; a subclass adds `name: Literal["…"]` and its own keys."""

    implementation: ClassVar[str]
    """`module:Class` of the `Method`, imported when training begins."""
    live_metrics: ClassVar[tuple[str, ...]]
    """Metrics of the live table and of the summary after training, most important first."""
    narrow_metrics: ClassVar[tuple[str, ...]] = ("loss",)
    """The live metrics that a narrow terminal shows."""
    needs_teacher: ClassVar[bool] = True
    """Whether the loss calls the teacher; otherwise no copy of it is on the device."""
    pool_without_data: ClassVar[bool] = False
    """Whether `data: teacher` means a pool of the teacher's samples x0, drawn before each round."""
    card: ClassVar[str] = ""
    """How a student was trained, for its model card: the end of "It was trained by …"."""

    name: str
    chunk_mb: float | None = Field(
        None, gt=0, le=1e6, description="memory of one chunk of logits; none: 64 on the CPU, 1/32 of a GPU's memory"
    )
    cache_mb: float | None = Field(
        None,
        ge=0,
        le=1e7,
        description="memory kept between the loss and its gradient, beyond which it is recomputed; "
        "none: 256 on the CPU, 1/10 of a GPU's memory",
    )

    def loss_memory(self, gpu: int | None) -> tuple[int, int]:
        """Bytes of a chunk of logits and of the cache, on a GPU of `gpu` bytes or on the CPU (None).

        Large chunks keep a GPU busy; small ones stay in the cache of a processor.
        """
        chunk, cache = (64 << 20, 256 << 20) if gpu is None else (min(gpu // 32, 2 << 30), min(gpu // 10, 8 << 30))
        own = self.chunk_mb, self.cache_mb
        return tuple(int(mb * 2**20) if mb is not None else size for mb, size in zip(own, (chunk, cache)))  # type: ignore[return-value]

    @property
    def predictions_per_sample(self) -> int:
        """Predictions of the student in one forward pass with a graph, for the memory estimate."""
        return 1

    @property
    def divisible_latents(self) -> int:
        """Latents of a sample that processes can divide among them; 1 if the method does not support it."""
        return 1

    @property
    def graphs_at_once(self) -> int:
        """Forward passes of the student whose graphs are held together until the backward pass."""
        return 1

    def check_latent(self, latent: LatentConfig, started: bool = False) -> None:
        """Raise ValueError if the method cannot train with this λ; `started`: a student brings it."""

    def check_rounds(self, rounds: int) -> None:
        """Raise ValueError if the method cannot train so many rounds."""

    def resolve_latent(self, latent: LatentConfig) -> LatentConfig | None:
        """λ with the defaults of this method; None for a student without λ."""
        return latent


class RangeConfig(Section):
    """A range of times; `low = high` is a constant."""

    low: float = Field(ge=0, le=1, description="smallest value")
    high: float = Field(ge=0, le=1, description="largest value")

    @model_validator(mode="after")
    def _ordered(self) -> RangeConfig:
        if self.low > self.high:
            raise ValueError(f"low {self.low} is above high {self.high}")
        return self


class TimeConfig(Section):
    """Distribution of t."""

    low: float = Field(0.0, ge=0, lt=1, description="t is uniform in [low, 1]")
    grid: int | None = Field(
        None, ge=2, le=MAX_ITERATIONS, description="times are multiples of 1/grid, rounded up (SDTT: 1024)"
    )
    one_share: float = Field(0.0, ge=0, le=1, description="probability that t is 1, where nothing is known")
