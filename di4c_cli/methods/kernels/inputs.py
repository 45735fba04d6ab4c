"""Inputs and output of the Di4C loss: predictions, samples and weights of one batch."""

from __future__ import annotations

from dataclasses import dataclass, field
from functools import cached_property

import torch
from torch import Tensor

from di4c_cli.denoiser import Prediction
from di4c_cli.methods.latent_group import ALONE, LatentGroup


@dataclass(frozen=True)
class TermWeights:
    """Weight of each term for each sample, `(B,)`; a term of weight 0 is not computed."""

    distil: Tensor
    consis: Tensor
    corr: Tensor
    marginal: Tensor

    @property
    def any(self) -> Tensor:
        """`(B,)` bool: samples with at least one term."""
        return (self.distil != 0) | (self.consis != 0) | (self.corr != 0) | (self.marginal != 0)

    @cached_property
    def present(self) -> dict[str, bool]:
        """Whether a term has a weight in any sample; the host waits for the device once."""
        names = ("distil", "consis", "corr", "marginal")
        found = torch.stack([(getattr(self, name) != 0).any() for name in names]).tolist()
        return dict(zip(names, found))

    def divided(self, by: float) -> TermWeights:
        """Each sample's share in a mean over `by` samples."""
        return TermWeights(self.distil / by, self.consis / by, self.corr / by, self.marginal / by)


@dataclass(frozen=True)
class LossInputs:
    """B samples with L latents each, maybe divided over the processes of `group`: everything but the student at t.

    `teacher`: predictions of x_t, numbers b·K + k for sample b, K = 1 for a product teacher. `student_u`:
    predictions of x_u, numbers place[b]·L + j for the samples with place[b] ≥ 0. The j-th consistency
    sample x_j is drawn from the j-th of these with `uniform` (B, L, D), or given as `samples` (B, M, D).
    """

    x_t: Tensor
    latents: int
    """Of this process; L in all."""
    weights: TermWeights
    control_variate: str = "marginal"
    teacher: Prediction | None = None
    teacher_latents: int = 1
    teacher_is_mixture: bool = False
    student_u: Prediction | None = None
    place: Tensor | None = None
    uniform: Tensor | None = None
    samples: Tensor | None = None
    x0: Tensor | None = None
    chunk_bytes: int = 64 << 20
    cache_bytes: int = 256 << 20
    group: LatentGroup = ALONE

    def __post_init__(self) -> None:
        if self.student_u is not None and self.uniform is None and self.samples is None:
            raise ValueError("the consistency term needs uniforms or samples at u")

    @property
    def all_latents(self) -> int:
        """L, over all processes of the group."""
        return self.latents * self.group.size

    @property
    def needs_teacher(self) -> bool:
        """Whether any sample has a term against the teacher."""
        return self.teacher is not None and (self.weights.present["distil"] or self.weights.present["marginal"])

    @property
    def needs_student_u(self) -> bool:
        """Whether any sample has a consistency term."""
        return self.student_u is not None and self.weights.present["consis"]

    @property
    def draws(self) -> int:
        """M, consistency samples per sample."""
        if not self.needs_student_u:
            return 0
        return self.all_latents if self.samples is None else self.samples.shape[1]


@dataclass
class LossOutput:
    """Values per sample `(B,)`, and the gradients of the batch mean if requested."""

    total: Tensor
    terms: dict[str, Tensor]
    diagnostics: dict[str, Tensor]
    hidden_grad: Tensor | None = None
    head_grads: list[Tensor] = field(default_factory=list)
