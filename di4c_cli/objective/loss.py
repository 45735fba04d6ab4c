"""The Di4C objective: times, samples and predictions of one batch, put together into its loss."""

from __future__ import annotations

from dataclasses import dataclass, field, replace

import torch
from torch import Tensor

from di4c_cli.denoiser import Denoiser, Prediction
from di4c_cli.draw import finest
from di4c_cli.noise import Noise
from di4c_cli.objective.fused import evaluate
from di4c_cli.objective.posterior import Posterior, bound
from di4c_cli.objective.problem import Problem, Weights
from di4c_cli.objective.reference import Samples, draw_reference
from di4c_cli.objective.settings import Settings
from di4c_cli.objective.steps import analytical, confident, repeat, repeat_label, teacher_predictions
from di4c_cli.objective.times import Moments, alpha_at, draw_moments


@dataclass
class Loss:
    """`total`: mean over the samples, with a graph. The rest is detached, `(B,)` each, by name.

    `terms` are unweighted, but for `total`, each sample's weighted sum. `active` says which samples a term
    or a health figure covers. `health`: correlation captured in nats on data and on consistency samples,
    λ-sensitivity, effective number of λ, gradient norm of every weighted term at the logits.
    """

    total: Tensor
    terms: dict[str, Tensor] = field(default_factory=dict)
    active: dict[str, Tensor] = field(default_factory=dict)
    health: dict[str, Tensor] = field(default_factory=dict)


@dataclass(frozen=True)
class Case:
    """One batch with its times and its x_t: what every part of the loss looks at."""

    student: Denoiser
    teacher: Denoiser
    label: Tensor | None
    noise: Noise
    moments: Moments
    x_t: Tensor
    x0: Tensor | None


class Objective:
    """distil + consis + α_t corr + marginal, with the weights, times and branches of its settings."""

    def __init__(self, settings: Settings) -> None:
        self.settings = settings

    def __call__(
        self,
        student: Denoiser,
        teacher: Denoiser,
        batch: Samples,
        noise: Noise,
        dropout: bool = False,
        posterior: Posterior | None = None,
        progress: float = 1.0,
    ) -> Loss:
        """The loss of samples `batch` with draws from `noise`; dropout acts on the student at t (and δ).

        `posterior` adds its bound; `progress` in [0, 1] is how much of the training is done.
        """
        with torch.no_grad():
            moments = draw_moments(self.settings, noise, progress)
            reference = draw_reference(self.settings, teacher, batch, moments, noise)
        case = Case(student, teacher, batch.label, noise, moments, reference.x_t, reference.x0)
        if posterior is None:
            return self.loss(case, dropout)
        return self._bounded(case, posterior, progress, dropout)

    def _bounded(self, case: Case, posterior: Posterior, progress: float, dropout: bool) -> Loss:
        """The bound alone, or beside those of the other terms that have a weight."""
        s, t = self.settings, case.moments.t
        assert s.posterior is not None
        weights = self.weights(case.moments)
        loss = Loss(torch.zeros((), dtype=finest(t.device), device=t.device))
        if s.branch == "both" or bool(weights.any.any()):
            loss = self.loss(case, dropout)
        problem = replace(self._problem(case.x_t, 1, weights), x0=case.x0)
        total, each, parts = bound(
            s.posterior, problem, case.student, posterior, t, case.label, case.noise, progress, dropout
        )
        loss.terms |= parts | {"total": loss.terms.get("total", 0.0) + each}
        loss.total = loss.total + total
        return loss

    def loss(self, case: Case, dropout: bool = False) -> Loss:
        """The loss of a batch whose times and x_t are drawn already."""
        # what has no gradient goes first: activation checkpoints replay in the mode the network is left in
        with torch.no_grad():
            main = self.at_t(case)
            small = self.at_delta(case) if self.settings.branch == "both" else None
        loss = self._evaluate(case, main, self.student_at_t(case, dropout))
        return loss if small is None else self._with_distil(case, loss, *small, dropout)

    def weights(self, moments: Moments) -> Weights:
        """Weights at t (eq. loss-maskgit, loss-sdtt); `both` distils apart (eq. loss-cifar10)."""
        s, t = self.settings, moments.t
        small = torch.zeros_like(t, dtype=torch.bool) if s.branch == "both" else t <= moments.delta
        return Weights(
            distil=small * self.distil_weight(moments),
            consis=~small * torch.full_like(t, s.consis_weight),
            corr=alpha_at(s.alpha, t),
            marginal=torch.full_like(t, s.marginal_weight),
        )

    def distil_weight(self, moments: Moments) -> Tensor:
        """`(B,)`: a constant, or 1/Δt (eq. loss-maskgit)."""
        weight = self.settings.distil_weight
        return 1 / moments.step if isinstance(weight, str) else torch.full_like(moments.step, weight)

    def at_t(self, case: Case) -> Problem:
        """Everything at t but the student: teacher, x_u, and the student at u where it is needed."""
        count, x_t, moments = self.settings.latents, case.x_t, case.moments
        weights = self.weights(moments)
        teacher, each = teacher_predictions(case.teacher, x_t, moments.t, case.label, count, case.noise)
        problem = replace(
            self._problem(x_t, count, weights), teacher=teacher, teacher_latents=each, x0=case.x0
        )
        chosen = (weights.consis != 0).nonzero().squeeze(1)
        if not len(chosen):
            return problem
        x_u = self._one_step(case, teacher, each, problem.chunk_bytes)
        lam = self._latents(case, "lam/u", x_u, moments.u)
        student_u = case.student.predict(
            x_u[chosen].flatten(0, 1),
            repeat(moments.u[chosen], count),
            repeat_label(None if case.label is None else case.label[chosen], count),
            None if lam is None else lam[chosen].flatten(0, 1),
        )
        place = torch.full_like(x_t[:, 0], -1)
        place[chosen] = torch.arange(len(chosen), device=place.device)
        uniform = case.noise.uniform("draw/u", count, x_t.shape[1])
        return replace(problem, student_u=student_u, place=place, uniform=uniform)

    def _latents(self, case: Case, name: str, x: Tensor, t: Tensor) -> Tensor | None:
        """λ `(B, L)` or `(B, L, size)` of the student at x `(B, D)` or `(B, L, D)` and t `(B,)` or `(B, L)`."""
        s = self.settings
        return case.student.draw_latent(
            case.noise, name, x, t, case.label, s.latents, stratified=s.stratified
        )

    def _one_step(self, case: Case, teacher: Prediction, each: int, budget: int) -> Tensor:
        """x_u `(B, L, D)`, L draws of the teacher's step from x_t."""
        count = self.settings.latents
        if self.settings.teacher_step == "confidence":
            return confident(teacher, each, case.x_t, case.moments, case.noise, count)
        uniform = case.noise.uniform("step/u", count, case.x_t.shape[1], 2)
        return analytical(teacher, each, case.x_t, case.moments, uniform, budget)

    def _problem(self, x_t: Tensor, latents: int, weights: Weights) -> Problem:
        s = self.settings
        sizes = (int(s.chunk_mb * 2**20), int(s.cache_mb * 2**20))
        return Problem(x_t, latents, weights, s.control_variate, chunk_bytes=sizes[0], cache_bytes=sizes[1])

    def student_at_t(self, case: Case, dropout: bool = False) -> Prediction:
        """The student at x_t under L latents, with its graph."""
        count = self.settings.latents
        lam = self._latents(case, "lam/t", case.x_t, case.moments.t)
        lam = None if lam is None else lam.flatten(0, 1)
        label = repeat_label(case.label, count)
        return case.student.predict(
            repeat(case.x_t, count), repeat(case.moments.t, count), label, lam, dropout
        )

    def _evaluate(self, case: Case, problem: Problem, student: Prediction) -> Loss:
        total, out = evaluate(problem, student)
        w, data = problem.weights, torch.full_like(case.x_t[:, 0], case.x0 is not None).bool()
        active = {name: getattr(w, name) != 0 for name in ("distil", "consis", "marginal")}
        active |= {name: active["consis"] for name in ("consis_corr", "consis_indep", "correlation_consis")}
        active |= {"corr": (w.corr != 0) & data, "nll": data, "correlation_data": data}
        return Loss(total, out.terms | {"total": out.total}, active, out.health)

    def at_delta(self, case: Case) -> tuple[Problem, Tensor]:
        """The distillation term of eq. loss-cifar10: each latent at its own small time δ and its own x_δ.

        To the core these are B·L samples of one latent. All come from the x0 that x_t came from (section
        F.1.3). A mixture teacher contributes one fresh λ to each: the gradient is linear in its law.
        """
        assert case.x0 is not None
        count = self.settings.latents
        delta = case.moments.delta.flatten()
        uniform = case.noise.uniform("corrupt/delta", count, case.x_t.shape[1])
        x_delta = case.teacher.process.corrupt(repeat(case.x0, count), delta, uniform.flatten(0, 1))
        each = x_delta.unflatten(0, (-1, count)), case.moments.delta, case.label
        lam = case.teacher.draw_latent(case.noise, "lam/teacher/delta", *each, count)
        lam = None if lam is None else lam.flatten(0, 1)
        teacher = case.teacher.predict(x_delta, delta, repeat_label(case.label, count), lam)
        zero = torch.zeros_like(delta)
        weights = Weights(repeat(self.distil_weight(case.moments), count), zero, zero, zero)
        return replace(self._problem(x_delta, 1, weights), teacher=teacher), delta

    def _with_distil(self, case: Case, loss: Loss, problem: Problem, delta: Tensor, dropout: bool) -> Loss:
        """Add the distillation term at δ to the loss at t."""
        count = self.settings.latents
        lam = self._latents(case, "lam/delta", problem.x_t.unflatten(0, (-1, count)), case.moments.delta)
        lam = None if lam is None else lam.flatten(0, 1)
        label = repeat_label(case.label, count)
        total, out = evaluate(problem, case.student.predict(problem.x_t, delta, label, lam, dropout))
        distil, weighted = (x.unflatten(0, (-1, count)).mean(1) for x in (out.terms["distil"], out.total))
        gradient = out.health["grad_distil"].unflatten(0, (-1, count)).square().sum(1).sqrt() / count
        loss.terms |= {"distil": distil, "total": loss.terms["total"] + weighted}
        loss.health["grad_distil"] = gradient
        loss.active["distil"] = self.distil_weight(case.moments) != 0
        loss.total = loss.total + total
        return loss
