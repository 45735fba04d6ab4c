"""The Di4C objective: times, samples and predictions of one batch, put together into its loss (paper 3, A, F)."""

from __future__ import annotations

from dataclasses import dataclass, field, replace

import torch
from torch import Tensor

from di4c_cli.denoiser import Denoiser
from di4c_cli.noise import Noise
from di4c_cli.objective.fused import evaluate
from di4c_cli.objective.problem import Problem, Weights
from di4c_cli.objective.reference import Samples, draw_reference
from di4c_cli.objective.settings import Settings
from di4c_cli.objective.steps import analytical, confident, repeat, repeat_label, teacher_predictions
from di4c_cli.objective.times import Moments, alpha_at, draw_moments


@dataclass
class Loss:
    """`total`: mean over the samples, with a graph. The rest is detached, `(B,)` each, by name.

    `terms` are unweighted, but for `total`, each sample's weighted sum. `active` says which samples a term covers.
    Health: correlation captured in nats on data and on consistency samples, λ-sensitivity, effective number of λ,
    gradient norm of every term at the logits.
    """

    total: Tensor
    terms: dict[str, Tensor] = field(default_factory=dict)
    active: dict[str, Tensor] = field(default_factory=dict)
    health: dict[str, Tensor] = field(default_factory=dict)


@dataclass(frozen=True)
class Case:
    """One batch with its draws: what every part of the loss looks at."""

    student: Denoiser
    teacher: Denoiser
    label: Tensor | None
    noise: Noise
    moments: Moments
    x_t: Tensor
    x0: Tensor | None


class Objective:
    """distil + consis + α_t corr + marginal with the weights, times and branches of its settings."""

    def __init__(self, settings: Settings) -> None:
        self.settings = settings

    def __call__(
        self, student: Denoiser, teacher: Denoiser, batch: Samples, noise: Noise, dropout: bool = False
    ) -> Loss:
        """The loss of samples `batch` with draws from `noise`; dropout acts on the student at t (and δ) alone."""
        with torch.no_grad():
            moments = draw_moments(self.settings, noise)
            reference = draw_reference(self.settings, teacher, batch, moments, noise)
            case = Case(student, teacher, batch.label, noise, moments, reference.x_t, reference.x0)
            main = self._at_t(case, self.weights(moments))
            small = self._at_delta(case) if self.settings.branch == "both" else None
        # the passes with a gradient come last: activation checkpoints replay them in the mode the network is left in
        loss = self._evaluate(case, main, dropout)
        return loss if small is None else self._with_distil(case, loss, small, dropout)

    def weights(self, moments: Moments) -> Weights:
        """Weights at t (eq. loss-maskgit, loss-sdtt); branch `both` has its distillation elsewhere (eq. loss-cifar10)."""
        s, t = self.settings, moments.t
        small = torch.zeros_like(t, dtype=torch.bool) if s.branch == "both" else t <= moments.delta
        return Weights(
            distil=small * self.distil_weight(moments),
            consis=~small * s.consis_weight * torch.ones_like(t),
            corr=alpha_at(s.alpha, t),
            marginal=torch.full_like(t, s.marginal_weight),
        )

    def distil_weight(self, moments: Moments) -> Tensor:
        """`(B,)`: a constant, or 1/Δt (eq. loss-maskgit)."""
        weight = self.settings.distil_weight
        return 1 / moments.step if isinstance(weight, str) else torch.full_like(moments.step, weight)

    def _problem(self, x_t: Tensor, latents: int, weights: Weights) -> Problem:
        s = self.settings
        return Problem(
            x_t=x_t,
            latents=latents,
            weights=weights,
            control_variate=s.control_variate,
            chunk_bytes=int(s.chunk_mb * 2**20),
            cache_bytes=int(s.cache_mb * 2**20),
        )

    def _at_t(self, case: Case, weights: Weights) -> Problem:
        """Everything at t but the student itself: teacher, x_u, the student at u for the samples that need it."""
        s, count = self.settings, self.settings.latents
        t, x_t = case.moments.t, case.x_t
        teacher, each = teacher_predictions(case.teacher, x_t, t, case.label, count, case.noise)
        problem = replace(
            self._problem(x_t, count, weights),
            teacher=teacher,
            teacher_latents=each,
            x0=case.x0,
        )
        chosen = (weights.consis != 0).nonzero().squeeze(1)
        if not len(chosen):
            return problem
        length = x_t.shape[1]
        if s.teacher_step == "confidence":
            x_u = confident(teacher, each, x_t, case.moments, case.noise, count)
        else:
            uniform = case.noise.uniform("step/u", count, length, 2)
            x_u = analytical(teacher, each, x_t, case.moments, uniform, problem.chunk_bytes)
        lam = case.student.draw_latent(case.noise, "lam/u", count)
        student_u = case.student.predict(
            x_u[chosen].flatten(0, 1),
            repeat(case.moments.u[chosen], count),
            repeat_label(None if case.label is None else case.label[chosen], count),
            None if lam is None else lam[chosen].flatten(0, 1),
        )
        place = torch.full_like(x_t[:, 0], -1)
        place[chosen] = torch.arange(len(chosen), device=place.device)
        uniform = case.noise.uniform("draw/u", count, length)
        return replace(problem, student_u=student_u, place=place, uniform=uniform)

    def _evaluate(self, case: Case, problem: Problem, dropout: bool) -> Loss:
        """The student at t with a gradient, and the loss."""
        count = problem.latents
        lam = case.student.draw_latent(case.noise, "lam/t", count)
        student_t = case.student.predict(
            repeat(case.x_t, count),
            repeat(case.moments.t, count),
            repeat_label(case.label, count),
            None if lam is None else lam.flatten(0, 1),
            dropout,
        )
        total, out = evaluate(problem, student_t)
        w, active = problem.weights, {}
        for name, weight in (("distil", w.distil), ("consis", w.consis), ("marginal", w.marginal)):
            active[name] = weight != 0
        active["consis_corr"] = active["consis_indep"] = active["correlation_consis"] = active["consis"]
        has_data = torch.full_like(active["distil"], case.x0 is not None)
        active |= {"corr": (w.corr != 0) & has_data, "nll": has_data, "correlation_data": has_data}
        return Loss(total, out.terms | {"total": out.total}, active, out.health)

    def _at_delta(self, case: Case) -> tuple[Problem, Tensor]:
        """The distillation term of eq. loss-cifar10: each latent at its own small time δ and its own x_δ.

        To the core these are B·L samples of one latent. All come from the x0 that x_t came from (section F.1.3).
        A mixture teacher contributes one fresh λ to each: the gradient is linear in its law.
        """
        assert case.x0 is not None
        count = self.settings.latents
        delta = case.moments.delta.flatten()
        uniform = case.noise.uniform("corrupt/delta", count, case.x_t.shape[1])
        x_delta = case.teacher.process.corrupt(repeat(case.x0, count), delta, uniform.flatten(0, 1))
        lam = case.teacher.draw_latent(case.noise, "lam/teacher/delta", count)
        lam = None if lam is None else lam.flatten(0, 1)
        teacher = case.teacher.predict(x_delta, delta, repeat_label(case.label, count), lam)
        zero = torch.zeros_like(delta)
        weights = Weights(repeat(self.distil_weight(case.moments), count), zero, zero, zero)
        return replace(self._problem(x_delta, 1, weights), teacher=teacher), delta

    def _with_distil(self, case: Case, loss: Loss, small: tuple[Problem, Tensor], dropout: bool) -> Loss:
        """Add the distillation term at δ to the loss at t."""
        count = self.settings.latents
        problem, delta = small
        lam = case.student.draw_latent(case.noise, "lam/delta", count)
        lam = None if lam is None else lam.flatten(0, 1)
        label = repeat_label(case.label, count)
        student = case.student.predict(problem.x_t, delta, label, lam, dropout)
        total, out = evaluate(problem, student)
        mean = {
            k: v.unflatten(0, (-1, count)).mean(1)
            for k, v in {"distil": out.terms["distil"], "total": out.total}.items()
        }
        loss.terms |= {"distil": mean["distil"], "total": loss.terms["total"] + mean["total"]}
        loss.active["distil"] = self.distil_weight(case.moments) != 0
        loss.total = loss.total + total
        return loss
