"""Di4C, the paper's method: distillation through dimensional correlations.

The student is the mixture p^θ(x0|x_t) = E_λ Π_d p^{θ,d}(x0^d|x_t; λ) (eq. mixture-model, section 3.2), with E_λ
estimated by L draws. The teacher p^ψ is a product model. p̄^θ is the product of the student's marginals (eq.
marginal-product). The loss is

    distil + consis + α_t corr + marginal        (eq. loss-cifar10, loss-maskgit, loss-sdtt; section F)

with the weights of the recipe. The first half of this file states every term in plain torch on dense tensors. The
second half, `Di4C`, draws the inputs of those terms. Training evaluates the terms with `kernels.evaluate`, which gives
the same values and gradients without the dense tensors (tests/methods/test_parity.py).
"""

from __future__ import annotations

import math
from dataclasses import replace

import torch
from torch import Tensor

from di4c_cli import memory
from di4c_cli.denoiser import Denoiser, Prediction
from di4c_cli.errors import UserError
from di4c_cli.methods.base import Loss, Method, MethodSetup, flat_latents, repeat, repeat_label
from di4c_cli.methods.di4c_checks import mixture_warnings
from di4c_cli.methods.di4c_config import Di4CConfig
from di4c_cli.methods.di4c_times import alpha_at, sample_times
from di4c_cli.methods.diagnostics import CollapseDetector
from di4c_cli.methods.kernels import LossInputs, TermWeights, evaluate
from di4c_cli.methods.kernels.accumulators import TERMS
from di4c_cli.methods.loss_domain import whole
from di4c_cli.methods.noised_batch import NoisedBatch, TrainingSamples, corrupt_data, teacher_trajectory
from di4c_cli.methods.teacher_step import analytical_teacher_step, confidence_teacher_step, teacher_predictions
from di4c_cli.noise import Noise

# The terms. log_t `(B, L, D, S)` is log p^{θ,d}(·|x_t; λ_i), log_u the same at x_u; log_teacher `(B, D, S)`.


def log_mean_exp(x: Tensor, dim: int) -> Tensor:
    """log of the mean of exp(x) along `dim`: E_λ in log space."""
    return torch.logsumexp(x, dim) - math.log(x.shape[dim])


def log_likelihoods(log_t: Tensor, x: Tensor) -> tuple[Tensor, Tensor, Tensor]:
    """log p^θ `(B, M)`, log p̄^θ `(B, M)` and log p^θ(·; λ_i) `(B, L, M)` of configurations x `(B, M, D)`."""
    index = x.clamp_max(log_t.shape[-1] - 1).transpose(1, 2)  # (B, D, M)
    single = log_t.gather(3, index[:, None].expand(-1, log_t.shape[1], -1, -1)).sum(2)
    product = log_mean_exp(log_t, 1).gather(2, index).sum(1)
    return log_mean_exp(single, 1), product, single


# Surrogate of the distillation loss, section A.1: Σ_d KL(p^{ψ,d} ‖ p^{θ,d}(·; λ)), averaged over λ.
def distil(log_t: Tensor, log_teacher: Tensor) -> Tensor:
    """`(B,)`: the student under every single λ against the teacher, at small times."""
    return (log_teacher.exp()[:, None] * (log_teacher[:, None] - log_t)).sum((1, 2, 3)) / log_t.shape[1]


# Eq. marginal-loss, section A: Σ_d KL(p^{ψ,d} ‖ p̄^{θ,d}).
def marginal(log_t: Tensor, log_teacher: Tensor) -> Tensor:
    """`(B,)`: the student's marginals against the teacher's."""
    return (log_teacher.exp() * (log_teacher - log_mean_exp(log_t, 1))).sum((1, 2))


# L_corr, section A.3, below eq. cv-data: -log p^θ(x0|x_t) + log p̄^θ(x0|x_t).
# Without a control variate it is eq. data-loss, -log p^θ(x0|x_t).
def corr(log_t: Tensor, x0: Tensor, control_variate: str) -> Tensor:
    """`(B,)`: the correlation term on data x0 `(B, D)`."""
    joint, product, _ = log_likelihoods(log_t, x0[:, None])
    return (-joint if control_variate == "none" else product - joint).squeeze(1)


# Eq. consis-cv, section A.2: with η_j = (x_u^j, λ'_j), x_u^j ~ p^ψ_{u|t}(·|x_t) (eq. product_ts) and x_j ~ p^θ(·|η_j),
#   mean_j [-log p^θ(x_j|x_t) + log p̄^θ(x_j|x_t)] + mean_j Σ_d H(p^{θ,d}(·|η_j), p̄^{θ,d}(·|x_t))   (eq. cv-computation).
# The second part is reported as KL(mean_j p^{θ,d}(·|η_j) ‖ p̄^{θ,d}), which differs by an entropy without gradient.
# `convex` (E.2) has the mean of log p(·; λ_i) in place of log p̄; `none` is eq. monte-carlo, without a second part.
def consis(log_t: Tensor, log_u: Tensor, x: Tensor, control_variate: str) -> tuple[Tensor, Tensor]:
    """Both parts `(B,)` of the consistency term; x `(B, L, D)` are the x_j, log_u the student at the η_j."""
    joint, product, single = log_likelihoods(log_t, x)
    mean_u = log_mean_exp(log_u, 1)
    if control_variate == "none":
        return -joint.mean(1), torch.zeros_like(joint[:, 0])
    if control_variate == "convex":
        second = (mean_u.exp()[:, None] * (mean_u[:, None] - log_t)).sum((1, 2, 3)) / log_t.shape[1]
        return (single.mean(1) - joint).mean(1), second
    return (product - joint).mean(1), (mean_u.exp() * (mean_u - log_mean_exp(log_t, 1))).sum((1, 2))


def dense_terms(inputs: LossInputs, student: Prediction) -> dict[str, Tensor]:
    """Every term of every sample, `(B,)` each, with torch's own gradient: the specification of `kernels.evaluate`."""
    p = inputs
    terms: dict[str, Tensor] = {}
    log_t = dense_log_probs(student).unflatten(0, (-1, p.latents))
    if p.teacher is not None:
        with torch.no_grad():
            log_teacher = log_mean_exp(dense_log_probs(p.teacher).unflatten(0, (-1, p.teacher_latents)), 1)
        terms |= {"marginal": marginal(log_t, log_teacher), "distil": distil(log_t, log_teacher)}
    if p.student_u is not None:
        assert p.place is not None
        with torch.no_grad():
            log_u = dense_log_probs(p.student_u).unflatten(0, (-1, p.latents))[p.place.clamp_min(0)]
            x = draw_consistency_samples(log_u, p)
        here = p.place >= 0  # the other samples have no student at u
        first, second = (torch.where(here, part, 0.0) for part in consis(log_t, log_u, x, p.control_variate))
        terms |= {"consis_corr": first, "consis_indep": second, "consis": first + second}
    if p.x0 is not None:
        terms["corr"] = corr(log_t, p.x0, p.control_variate)
    return terms


def dense_log_probs(prediction: Prediction) -> Tensor:
    """log p(x0^d|x_t) at all positions, `(N, D, S)`; a known position is certain, with a finite log 0."""
    return prediction.dense().clamp_min(-1e6)


def draw_consistency_samples(log_u: Tensor, inputs: LossInputs) -> Tensor:
    """x_j `(B, L, D)`, one under each λ': given, or by the inverse CDF of given uniforms."""
    if inputs.samples is not None:
        return inputs.samples
    assert inputs.uniform is not None
    cumulative = log_u.exp().cumsum(-1)
    goal = inputs.uniform.to(cumulative)[..., None] * cumulative[..., -1:]
    return torch.searchsorted(cumulative, goal).squeeze(-1).clamp_max(log_u.shape[-1] - 1)


def dense_loss(inputs: LossInputs, student: Prediction) -> Tensor:
    """Mean over the samples of Σ weight · term."""
    terms = dense_terms(inputs, student)
    weighted = [getattr(inputs.weights, name) * terms[name] for name in TERMS if name in terms]
    return torch.stack(weighted).sum(0).mean()


# The method: times, samples and predictions that the terms need.

AUTHORS_MASK_SHARE = 0.999
"""Mask share at t = 1 in the authors' SDTT code (`time.corrupt_later`)."""


class Di4C(Method):
    """distil + consis + α_t corr + marginal, with the weights, times and branches of its config."""

    config: Di4CConfig

    def __init__(
        self, config: Di4CConfig, student: Denoiser, teacher: Denoiser | None = None, setup: MethodSetup | None = None
    ) -> None:
        super().__init__(config, student, teacher, setup)
        # the recipe is checked; a mixture teacher brings its own λ
        if config.stratified and student.latent is not None and not student.latent.is_one_uniform_number:
            raise UserError(
                "method.stratified needs λ of one uniform number, and this student's λ is not.",
                "Add --set method.stratified=false.",
            )
        if config.time.corrupt_later and student.process.config.get("schedule") != "linear":
            raise UserError(
                "method.time.corrupt_later needs a masked process with a linear schedule.",
                "Add --set method.time.corrupt_later=false.",
            )

    @property
    def own_latents(self) -> int:
        """Latents per sample in this process: L, or its part of them. Below, L is this number."""
        return self.config.latents // self.latent_group.size

    def collapse_detector(self) -> CollapseDetector:
        return CollapseDetector(mixture_warnings(self.config.latents))

    def loss(self, batch: TrainingSamples, noise: Noise, progress: float = 1.0) -> Loss:
        """The loss of one batch; dropout acts on the student at t and at δ."""
        return self.loss_of(self.noised(batch, noise, progress))

    @torch.no_grad()
    def noised(self, batch: TrainingSamples, noise: Noise, progress: float = 1.0) -> NoisedBatch:
        """Times and x_t of a batch: corrupted data, or the teacher's own trajectory."""
        c = self.config
        times = sample_times(c, noise, progress)
        x_t: Tensor
        x0: Tensor | None
        if self.setup.data_free:
            to_zero = c.branch == "both" or (c.alpha.kind != "zero" and c.alpha.scale != 0)
            x_t, x0 = teacher_trajectory(self.teacher, batch.label, times.t, c.reference_steps, noise, to_zero)
        else:
            t = times.t
            if c.time.corrupt_later and c.time.grid is not None:
                t = AUTHORS_MASK_SHARE * (t + 1 / c.time.grid)
            x_t, x0 = corrupt_data(self.student.process, batch, t, noise)
        group = self.latent_group
        if c.branch == "both":
            times = replace(times, delta=group.own(times.delta))
        # from here on every draw is made per latent
        return NoisedBatch(x_t, x0, batch.label, times, noise.divided(group.rank, group.size))

    def loss_of(self, batch: NoisedBatch) -> Loss:
        """The loss of a batch whose times and x_t are given."""
        # without gradient first: activation checkpoints replay in the mode in which the network is left
        with torch.no_grad():
            inputs = self.inputs_at_t(batch)
            small = self.inputs_at_delta(batch) if self.config.branch == "both" else None
        # torch 2.9 and 2.10 would reuse the cast weights of the pass above, which have no graph
        torch.clear_autocast_cache()
        total, out = evaluate(inputs, self.student_at_t(batch))
        w, data = inputs.weights, torch.full_like(batch.x_t[:, 0], batch.x0 is not None).bool()
        active = {name: getattr(w, name) != 0 for name in ("distil", "consis", "marginal")}
        active |= {name: active["consis"] for name in ("consis_corr", "consis_indep", "correlation_consis")}
        active |= {"corr": (w.corr != 0) & data, "nll": data, "correlation_data": data}
        loss = Loss(total, out.terms | {"total": out.total}, active, out.diagnostics)
        return loss if small is None else self._with_distil(batch, loss, *small)

    def weights(self, batch: NoisedBatch) -> TermWeights:
        """Weights at t (eq. loss-maskgit, loss-sdtt); branch `both` distils separately (eq. loss-cifar10)."""
        c, t = self.config, batch.times.t
        small = torch.zeros_like(t, dtype=torch.bool) if c.branch == "both" else t <= batch.times.delta
        return TermWeights(
            distil=small * self.distil_weight(batch),
            consis=~small * torch.full_like(t, c.consis_weight),
            corr=alpha_at(c.alpha, t),
            marginal=torch.full_like(t, c.marginal_weight),
        )

    def distil_weight(self, batch: NoisedBatch) -> Tensor:
        """`(B,)`: a constant, or 1/Δt (eq. loss-maskgit)."""
        weight, step = self.config.distil_weight, batch.times.step
        return 1 / step if isinstance(weight, str) else torch.full_like(step, weight)

    def student_at_t(self, batch: NoisedBatch) -> Prediction:
        """The student at x_t under L latents, with its graph."""
        count = self.own_latents
        lam = flat_latents(self._latents(batch, "lam/t", batch.x_t, batch.times.t))
        label = repeat_label(batch.label, count)
        return self._scored(
            self.student.predict(repeat(batch.x_t, count), repeat(batch.times.t, count), label, lam, self.setup.dropout)
        )

    def inputs_at_t(self, batch: NoisedBatch) -> LossInputs:
        """Everything at t but the student: the teacher, x_u, and the student at u where it is needed."""
        count, x_t, times = self.own_latents, batch.x_t, batch.times
        weights = self.weights(batch)
        teacher, teacher_latents = teacher_predictions(self.teacher, x_t, times.t, batch.label, count, batch.noise)
        inputs = replace(
            self._inputs(x_t, count, weights),
            teacher=self._scored(teacher),
            teacher_latents=teacher_latents,
            teacher_is_mixture=self.teacher.latent is not None,
            x0=batch.x0,
            group=self.latent_group,
        )
        chosen = (weights.consis != 0).nonzero().squeeze(1)
        if not len(chosen):
            return inputs
        x_u = self._one_step(batch, teacher, teacher_latents, inputs.chunk_bytes)
        lam = self._latents(batch, "lam/u", x_u, times.u)
        student_u = self.student.predict(
            x_u[chosen].flatten(0, 1),
            repeat(times.u[chosen], count),
            repeat_label(None if batch.label is None else batch.label[chosen], count),
            None if lam is None else lam[chosen].flatten(0, 1),
            self.setup.dropout_at_u,
        )
        place = torch.full_like(x_t[:, 0], -1)
        place[chosen] = torch.arange(len(chosen), device=place.device)
        uniform = batch.noise.uniform("draw/u", count, x_t.shape[1])
        return replace(inputs, student_u=self._scored(student_u), place=place, uniform=uniform)

    def inputs_at_delta(self, batch: NoisedBatch) -> tuple[LossInputs, Tensor]:
        """The distillation term of eq. loss-cifar10: each latent at its own small time δ and its own x_δ.

        The kernel sees B·L samples of one latent. All of them come from the x0 of x_t (section F.1.3). A mixture
        teacher contributes one fresh λ to each, because the gradient is linear in its distribution.
        """
        assert batch.x0 is not None
        count = self.own_latents
        delta = batch.times.delta.flatten()
        uniform = batch.noise.uniform("corrupt/delta", count, batch.x_t.shape[1])
        x_delta = self.teacher.process.corrupt(repeat(batch.x0, count), delta, uniform.flatten(0, 1))
        given = x_delta.unflatten(0, (-1, count)), batch.times.delta, batch.label
        lam = flat_latents(self.teacher.draw_latent(batch.noise, "lam/teacher/delta", *given, count))
        teacher = self.teacher.predict(x_delta, delta, repeat_label(batch.label, count), lam)
        zero = torch.zeros_like(delta)
        weights = TermWeights(repeat(self.distil_weight(batch), count), zero, zero, zero)
        return replace(self._inputs(x_delta, 1, weights), teacher=self._scored(teacher)), delta

    def _with_distil(self, batch: NoisedBatch, loss: Loss, inputs: LossInputs, delta: Tensor) -> Loss:
        """Add the distillation term at δ to the loss at t."""
        count = self.own_latents
        x_delta = inputs.x_t.unflatten(0, (-1, count))
        lam = flat_latents(self._latents(batch, "lam/delta", x_delta, batch.times.delta))
        label = repeat_label(batch.label, count)
        student = self._scored(self.student.predict(inputs.x_t, delta, label, lam, self.setup.dropout))
        total, out = evaluate(inputs, student)
        distil, weighted = (x.unflatten(0, (-1, count)).mean(1) for x in (out.terms["distil"], out.total))
        squared = self.latent_group.mean(out.diagnostics["grad_distil"].unflatten(0, (-1, count)).square().mean(1))
        loss.terms |= {"distil": distil, "total": loss.terms["total"] + weighted}
        loss.diagnostics["grad_distil"] = (squared / self.config.latents).sqrt()
        loss.active["distil"] = self.distil_weight(batch) != 0
        loss.total = loss.total + total
        return loss

    def _latents(self, batch: NoisedBatch, name: str, x: Tensor, t: Tensor) -> Tensor | None:
        """λ `(B, L)` or `(B, L, size)` of the student at x `(B, D)` or `(B, L, D)` and t `(B,)` or `(B, L)`."""
        count, stratified = self.own_latents, self.config.stratified
        return self.student.draw_latent(batch.noise, name, x, t, batch.label, count, stratified=stratified)

    def _one_step(self, batch: NoisedBatch, teacher: Prediction, teacher_latents: int, budget: int) -> Tensor:
        """x_u `(B, L, D)`, L draws of the teacher's step from x_t."""
        count = self.own_latents
        kind = self.config.teacher_step
        if kind != "analytical":
            given = teacher, teacher_latents, batch.x_t, batch.times, batch.noise, count
            return confidence_teacher_step(*given, authors=kind == "confidence-authors")
        uniform = batch.noise.uniform("step/u", count, batch.x_t.shape[1], 2)
        return analytical_teacher_step(teacher, teacher_latents, batch.x_t, batch.times, uniform, budget)

    def _scored(self, prediction: Prediction) -> Prediction:
        """The prediction at the positions and over the symbols of the loss."""
        return whole(prediction) if self.config.loss_domain == "all" else prediction

    def _inputs(self, x_t: Tensor, latents: int, weights: TermWeights) -> LossInputs:
        c = self.config
        chunk, cache = c.loss_memory(memory.gpu_memory(x_t.device))
        return LossInputs(x_t, latents, weights, c.control_variate, chunk_bytes=chunk, cache_bytes=cache)
