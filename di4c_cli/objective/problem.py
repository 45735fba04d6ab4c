"""One batch as the loss sees it: predictions, samples and weights, wherever they came from."""

from __future__ import annotations

from dataclasses import dataclass, field

from torch import Tensor

from di4c_cli.denoiser import Prediction


@dataclass(frozen=True)
class Weights:
    """Weight of each term for each sample, `(B,)`; what has weight 0 is not computed."""

    distil: Tensor
    consis: Tensor
    corr: Tensor
    marginal: Tensor

    @property
    def any(self) -> Tensor:
        """`(B,)` bool: samples that have a loss at all."""
        return (self.distil != 0) | (self.consis != 0) | (self.corr != 0) | (self.marginal != 0)

    def divided(self, by: int) -> Weights:
        """Each sample's share in a mean over `by` samples."""
        return Weights(self.distil / by, self.consis / by, self.corr / by, self.marginal / by)


@dataclass(frozen=True)
class Problem:
    """B samples with L latents each: everything that the student at t is compared with.

    `teacher`: predictions of x_t, numbers b·K + k for sample b, K = 1 for a product teacher. `student_u`:
    predictions of x_u, numbers place[b]·L + j for the samples with place[b] ≥ 0. The j-th consistency
    sample x_j is drawn from the j-th of these with `uniform` (B, L, D), or given as `samples` (B, M, D).
    """

    x_t: Tensor
    latents: int
    weights: Weights
    control_variate: str = "marginal"
    teacher: Prediction | None = None
    teacher_latents: int = 1
    student_u: Prediction | None = None
    place: Tensor | None = None
    uniform: Tensor | None = None
    samples: Tensor | None = None
    x0: Tensor | None = None
    chunk_bytes: int = 64 << 20
    cache_bytes: int = 256 << 20

    @property
    def needs_teacher(self) -> bool:
        wanted = (self.weights.distil != 0) | (self.weights.marginal != 0)
        return self.teacher is not None and bool(wanted.any())

    @property
    def needs_later(self) -> bool:
        """Whether any sample has a consistency term."""
        return self.student_u is not None and bool((self.weights.consis != 0).any())

    @property
    def draws(self) -> int:
        """M, consistency samples per sample."""
        if not self.needs_later:
            return 0
        return self.latents if self.samples is None else self.samples.shape[1]


@dataclass
class Outcome:
    """Values per sample `(B,)`; gradients of the batch's mean loss when they were asked for."""

    total: Tensor
    terms: dict[str, Tensor]
    health: dict[str, Tensor]
    hidden_grad: Tensor | None = None
    head_grads: list[Tensor] = field(default_factory=list)
