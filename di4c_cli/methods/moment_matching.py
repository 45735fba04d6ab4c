"""Moment matching: the student learns on its own samples, against an auxiliary network that predicts them.

x_t is noised data, λ ~ prior, p = p^θ(·|x_t; λ), x ~ p, and x_s, s < t, is the step of the process given x_t and x.
Given x_s, x^d has the distribution r ∝ p(c) q(x_s^d|x_t^d, x0^d = c), which is p itself at a masked position. In turn,

    auxiliary network φ:  -Σ_d Σ_c (r(c) + w p^ψ(c|x_s)) log p^φ(c|x_s)
    student θ:             Σ_d Σ_c r(c) (log p^φ(c|x_s) - log p^ψ(c|x_s))      (x_s and φ without gradient)

The optimum of φ is (p̄ + w p^ψ) / (1 + w), p̄(c|x_s) = E[r(c)|x_s] the student's own conditional of x given x_s. There
the student's term is the f-divergence D = Σ_c p̄ log (p̄ + w p^ψ) / ((1 + w) p^ψ) with KL(p̄ ‖ p^ψ) / (1 + w) ≤ D ≤
KL(p̄ ‖ p^ψ): it is 0 only where the student's samples have the teacher's conditionals. For a linear mask schedule the
weight 1/m_s is that of the ELBO. With it, w = 0 and t = 1, the mean of D over s is the divergence of the student's
joint distribution from that of the teacher's infinitely many steps (tests/methods/test_moment_matching.py).

λ lets a masked student draw correlated symbols in one step. Relatives: moment matching distillation of continuous
diffusion, D-MMD, IDLM.
"""

from __future__ import annotations

import copy
import math
from collections.abc import Sequence
from dataclasses import dataclass
from functools import cached_property

import torch
from torch import Tensor

from di4c_cli import memory
from di4c_cli.denoiser import Denoiser, Prediction
from di4c_cli.draw import RowLogProbs
from di4c_cli.errors import UserError
from di4c_cli.methods.base import Loss, Method, MethodSetup, TrainedPart
from di4c_cli.methods.di4c_times import SampledTimes
from di4c_cli.methods.diagnostics import CollapseDetector, RunningMeans
from di4c_cli.methods.kernels import RowTerm, sum_over_rows
from di4c_cli.methods.moment_matching_config import MomentMatchingConfig
from di4c_cli.methods.noised_batch import TrainingSamples, corrupt_data
from di4c_cli.methods.teacher_step import analytical_teacher_step
from di4c_cli.noise import Noise
from di4c_cli.process import Masked, Process

MIN_MASK_SHARE = 0.05
"""Smallest m_s in the weight 1/m_s."""
MIN_GAP = 1e-6
"""Smallest k (t - s); with smaller ones s may round to t."""
MIN_DIVERSITY = 0.85
"""Share of the data's collision entropy below which the student's diversity counts as collapsing."""


def sample_times(config: MomentMatchingConfig, noise: Noise) -> tuple[Tensor, Tensor]:
    """t and s `(B,)`, 0 < t - s ≤ u^gap_power / k, u uniform, k from `steps`; t is 1 with probability `one_share`.

    Where t = 1 and s is near 1, nearly nothing is known at x_s. Only there do the student's marginals meet the
    teacher's, so these times keep the shares of the data's modes (classes); a power above 1 draws them more often.
    """
    choice = noise.uniform("steps")
    k = torch.tensor(config.steps, dtype=choice.dtype, device=choice.device)[(choice * len(config.steps)).long()]
    gap, place = (1 - noise.uniform("gap")).pow(config.gap_power).clamp_min(MIN_GAP) / k, noise.uniform("t")
    t = torch.floor(place * k + 1) / k if config.on_grid else (place + gap).clamp_max(1)
    at_one = noise.uniform("t/one") < config.one_share
    s = torch.where(at_one, 1 - gap, t - gap if config.on_grid else place)
    return torch.where(at_one, 1.0, t), s.clamp_min(0)


def weight_at(process: Process, s: Tensor) -> Tensor:
    """1/m_s `(B,)`, which makes every sample count as one with all positions unknown; 1 without a mask."""
    return 1 / process.mask_share(s).clamp_min(MIN_MASK_SHARE) if isinstance(process, Masked) else torch.ones_like(s)


@dataclass(frozen=True)
class OwnStep:
    """One step of the student on a batch: its prediction at x_t, the x_s drawn from it, and the teacher at x_s."""

    student: Prediction
    teacher: Prediction
    x0: Tensor
    x_t: Tensor
    x_s: Tensor
    t: Tensor
    s: Tensor
    noise: Noise

    @property
    def rows(self) -> Tensor:
        """`(B, D)` bool: the positions that have a term."""
        return self.student.process.unknown(self.x_s)

    @cached_property
    def evidence(self) -> RowLogProbs | None:
        """What x_s says about its own x, as a function of rows."""
        return self.student.process.evidence(self.x_t, self.t, self.x_s, self.s)

    def log_r(self, logits: Tensor, b: Tensor, d: Tensor) -> Tensor:
        """log r `(n, S)` from the student's logits at rows."""
        known = 0.0 if self.evidence is None else self.evidence(b, d).to(logits)
        return torch.log_softmax(logits + known, -1)

    def agreement(self) -> dict[str, Tensor]:
        """Share of the new positions at which a sample equals its neighbour in the batch: of x_s, and of noised data.

        -log of it is the collision entropy of a position. It falls when the student's samples become alike.
        """
        process = self.student.process
        if isinstance(process, Masked):
            known = torch.where(self.rows, process.symbols, self.x0)
            new = process.unknown(self.x_t) & ~self.rows
        else:
            known = process.corrupt(self.x0, self.s, self.noise.uniform("agreement", self.x0.shape[1]))
            new = torch.ones_like(self.rows)
        both = new & new.roll(1, 0)
        count = both.sum(1)
        same = [((x == x.roll(1, 0)) & both).sum(1) / count.clamp_min(1) for x in (self.x_s, known)]
        return {"agreement": same[0], "agreement_data": same[1], "pairs": count}


class MomentMatching(Method):
    """A student and an auxiliary network, updated in turn."""

    config: MomentMatchingConfig

    def __init__(
        self,
        config: MomentMatchingConfig,
        student: Denoiser,
        teacher: Denoiser | None = None,
        setup: MethodSetup | None = None,
    ) -> None:
        super().__init__(config, student, teacher, setup)
        if self.teacher.latent is not None:
            raise UserError("Moment matching needs a teacher without λ.", "Name the first teacher with --teacher.")
        self.auxiliary = copy.deepcopy(self.teacher).requires_grad_(True)
        setattr(self.auxiliary.network, "checkpointing", getattr(student.network, "checkpointing", False))  # noqa: B010

    @property
    def chunk_bytes(self) -> int:
        """Memory of one chunk of rows."""
        return self.config.loss_memory(memory.gpu_memory(self.student.device))[0]

    def parts(self) -> list[TrainedPart]:
        own = {"decay": "none"} | ({} if self.config.auxiliary_lr is None else {"lr": self.config.auxiliary_lr})
        prior = self.student.learned_prior  # of the student with which the run began; it stays as it is
        kept = set() if prior is None else set(prior.parameters())
        student = [parameter for parameter in self.student.parameters() if parameter not in kept]
        return [TrainedPart(student), TrainedPart(list(self.auxiliary.parameters()), own)]

    def updates(self, step: int) -> Sequence[int]:
        return (0, 1)

    def collapse_detector(self) -> CollapseDetector:
        return CollapseDetector(diversity_warnings)

    def step(self, batch: TrainingSamples, noise: Noise) -> OwnStep:
        """The student predicts at x_t, with a graph if asked; x_s and the teacher have none."""
        t, s = sample_times(self.config, noise)
        x_t, x0 = corrupt_data(self.student.process, batch, t, noise)
        with torch.no_grad():
            lam = self.student.draw_latent(noise, "lam", x_t, t, batch.label)
        student = self.student.predict(x_t, t, batch.label, lam, self.setup.dropout)
        with torch.no_grad():
            uniform = noise.uniform("step/s", 1, x_t.shape[1], 2)
            times = SampledTimes(t, s, t - s, s)
            x_s = analytical_teacher_step(student, 1, x_t, times, uniform, self.chunk_bytes).squeeze(1)
            teacher = self.teacher.predict(x_s, s, batch.label)
        return OwnStep(student, teacher, x0, x_t, x_s, t, s, noise)

    def loss(self, batch: TrainingSamples, noise: Noise, progress: float = 1.0) -> Loss:
        """The student's loss of one batch."""
        step = self.step(batch, noise)
        with torch.no_grad():
            auxiliary = self.auxiliary.predict(step.x_s, step.s, batch.label)
        weight, term = weight_at(self.student.process, step.s), student_rows(step, auxiliary)
        total, gap = sum_over_rows(step.student, step.rows, weight, term, self.chunk_bytes)
        terms, some = step.agreement(), step.rows.any(1)
        pairs = terms.pop("pairs") * (len(step.x_t) > 1) > 0
        active = {"gap": some, "agreement": pairs, "agreement_data": pairs}
        return Loss(total, {"gap": gap, **terms, "total": gap * weight.to(gap)}, active)

    def part_loss(self, part: int, batch: TrainingSamples, noise: Noise, progress: float) -> Loss:
        if part == 0:
            return self.loss(batch, noise, progress)
        with torch.no_grad():
            step = self.step(batch, noise)
        auxiliary = self.auxiliary.predict(step.x_s, step.s, batch.label)
        weight = weight_at(self.student.process, step.s)
        term = auxiliary_rows(step, self.config.teacher_weight)
        total, each = sum_over_rows(auxiliary, step.rows, weight, term, self.chunk_bytes)
        return Loss(total, {"auxiliary": each}, {"auxiliary": step.rows.any(1)})


def student_rows(step: OwnStep, auxiliary: Prediction) -> RowTerm:
    """Σ r δ of each row with its gradient r (δ - Σ r δ) at the logits, δ = log p^φ - log p^ψ."""

    def term(logits: Tensor, b: Tensor, d: Tensor) -> tuple[Tensor, Tensor]:
        r = step.log_r(logits, b, d).exp_()
        delta = auxiliary.log_probs(b, d).sub_(step.teacher.log_probs(b, d))
        each = (r * delta).sum(-1)
        return each, r.mul_(delta.sub_(each[:, None]))

    return term


def auxiliary_rows(step: OwnStep, teacher_weight: float) -> RowTerm:
    """-Σ (r + w p^ψ) log p^φ of each row with its gradient (1 + w) p^φ - r - w p^ψ at the logits."""

    def term(logits: Tensor, b: Tensor, d: Tensor) -> tuple[Tensor, Tensor]:
        target = step.log_r(step.student.log_probs(b, d), b, d).exp_()
        target.add_(step.teacher.log_probs(b, d).exp_(), alpha=teacher_weight)
        log_aux = torch.log_softmax(logits, -1)
        each = -(target * log_aux).sum(-1)
        return each, log_aux.exp_().mul_(1 + teacher_weight).sub_(target)

    return term


def diversity_warnings(figures: RunningMeans) -> tuple[str, str] | None:
    """The check of moment matching: collision entropy of the student's samples against that of data."""
    own, data = (figures.mean.get(name) for name in ("agreement", "agreement_data"))
    if own is None or data is None or not 0 < data < 1:
        return None
    share = math.log(max(own, 1e-9)) / math.log(data)
    return ("diversity", diversity_collapse(own, data, share)) if share < MIN_DIVERSITY else None


def diversity_collapse(own: float, data: float, share: float) -> str:
    """The student's samples are too much alike."""
    return (
        f"The student's diversity is collapsing: two of its samples agree at {own:.0%} of the positions and two of "
        f"the data at {data:.0%}, so {share:.0%} of the entropy is left. Lower the learning rate "
        "(--set training.optimizer.lr=…), let λ matter more from the start (--set latent.init=0.3), or give λ more "
        "numbers (--set latent.dim=…)."
    )
