"""The Di4C loss in closed form, in chunks of rows: the fast kernel of `methods.di4c.dense_terms`.

Known positions have probability one under every model and contribute exactly zero, so only unknown positions are
rows. All L latents of a row are processed together. The first pass accumulates the sums over positions that the joint
distribution of the mixture needs. The second pass computes the gradient at the logits in closed form and
back-propagates it through the head. The `(B, L, D, S)` tensor of probabilities never exists.
"""

from __future__ import annotations

import math
from dataclasses import dataclass
from typing import Any, Protocol

import torch
from torch import Tensor
from torch.autograd.function import once_differentiable

from di4c_cli.denoiser import Prediction
from di4c_cli.methods.kernels.accumulators import (
    Accumulators,
    log_target_ratio,
    logit_gradient,
    weighted,
    weighted_targets,
)
from di4c_cli.methods.kernels.diagnostics import Probe, ProbeRows
from di4c_cli.methods.kernels.head import LinearHead, OpaqueHead, head_of
from di4c_cli.methods.kernels.inputs import LossInputs, LossOutput, TermWeights
from di4c_cli.methods.kernels.targets import averaged, groups, product


@dataclass
class Chunk:
    """Rows (b, d), each `(n,)`, all with a consistency term or all without; what pass 1 keeps for pass 2."""

    b: Tensor
    d: Tensor
    consis: bool
    keep_targets: bool = True
    keep_log_probs: bool = True
    log_p: Tensor | None = None  # (n, L, S)
    shift: Tensor | None = None  # (n, S)
    single: Tensor | None = None  # (n, S)


class ChunkedLoss:
    """The loss of a student at t whose prediction of sample b under λ_i has the number b·L + i."""

    def __init__(self, inputs: LossInputs, student: Prediction) -> None:
        self.inputs, self.student = inputs, student
        self.symbols = student.process.symbols
        # of the batch's mean; the mean over processes must add up what those of a group contribute to one sample
        self.shares = inputs.weights.divided(len(inputs.x_t) / inputs.group.size)
        self.sums = Accumulators(inputs, self.symbols)
        self.head: LinearHead | OpaqueHead = head_of(student.network, student.hidden)

    def run(self, gradient: bool, diagnostics: bool = True) -> LossOutput:
        """Terms of all samples and, with `gradient`, the gradient of the batch mean."""
        p = self.inputs
        chunks = self.chunks()
        probe = Probe(len(p.x_t), [chunk.b for chunk in chunks], p.x_t.device) if diagnostics else None
        for number, chunk in enumerate(chunks):
            rows = self.first_pass(chunk)
            if probe is not None and len(probe.wanted[number]):
                probe.kept.append(rows.take(probe.wanted[number]))
            if not (gradient and chunk.keep_log_probs):
                chunk.log_p = None
            if not (gradient and chunk.keep_targets):
                chunk.shift = chunk.single = None
        self.sums.collect()
        terms = self.sums.terms()
        out = LossOutput(weighted(p.weights, terms), terms, probe.figures(self.sums) if probe else {})
        if gradient:
            self.second_pass(chunks, out)
        return out

    def chunks(self) -> list[Chunk]:
        """Rows of unknown positions, those with a consistency term first, cut to the chunk's memory."""
        p = self.inputs
        unknown = self.student.process.unknown(p.x_t) & p.weights.any[:, None]
        consis = (p.weights.consis != 0) & p.needs_student_u
        row = self.symbols * torch.finfo(self.head.dtype).bits // 8
        size = max(1, int(p.chunk_bytes // (row * p.latents)))
        out = []
        for kind in (True, False):
            b, d = (unknown & (consis == kind)[:, None]).nonzero(as_tuple=True)
            out += [Chunk(bs, ds, kind) for bs, ds in zip(b.split(size), d.split(size)) if len(bs)]
        self.plan_cache(out, row)
        return out

    def plan_cache(self, chunks: list[Chunk], row: int) -> None:
        """Choose the tensors kept between the passes; the others are recomputed.

        `row` is the size of S numbers in bytes.

        Targets come first: they are L times smaller than the student's log-probabilities and cost as much.
        """
        p = self.inputs
        targets = 2 if p.control_variate == "convex" or p.weights.present["distil"] else 1
        left = p.cache_bytes
        for chunk in chunks:
            left -= len(chunk.b) * row * targets
            chunk.keep_targets = left >= 0
        for chunk in chunks:
            left -= len(chunk.b) * row * p.latents
            chunk.keep_log_probs = left >= 0

    def first_pass(self, chunk: Chunk) -> ProbeRows:
        """Add the chunk to the sums and keep its log-probabilities and targets."""
        teacher, at_u = self.targets(chunk)
        log_p, log_mean = self.student_log_probs(chunk)
        symbols = self.sums.configurations(chunk.b, chunk.d)
        for rows in groups(len(chunk.b), log_p[0].numel(), log_p):
            parts = [None if x is None else x[rows] for x in (teacher, at_u)]
            self.sums.add(chunk.b[rows], symbols[rows], log_p[rows], log_mean[rows], *parts)
        self.store_targets(chunk, log_p, log_mean, teacher, at_u)
        return ProbeRows(chunk.b, symbols, log_p, log_mean, teacher, at_u)

    def store_targets(
        self, chunk: Chunk, log_p: Tensor, log_mean: Tensor, teacher: Tensor | None, at_u: Tensor | None
    ) -> None:
        """Keep in the chunk what its gradient needs."""
        p = self.inputs
        distil = p.weights.present["distil"]
        mixture, chunk.single = weighted_targets(self.shares, distil, p.control_variate, chunk.b, teacher, at_u)
        chunk.log_p, chunk.shift = log_p, log_target_ratio(mixture, log_mean, p.all_latents)

    def targets(self, chunk: Chunk) -> tuple[Tensor | None, Tensor | None]:
        """Marginals of the teacher K and of the student at u P, `(n, S)` each; also draws the x_j."""
        p, b, d = self.inputs, chunk.b, chunk.d
        teacher = at_u = None
        if p.needs_teacher and p.teacher is not None:
            teacher, _ = averaged(p.teacher, b * p.teacher_latents, p.teacher_latents, d)
            teacher = p.group.mean(teacher) if p.teacher_is_mixture else teacher
        if chunk.consis and p.student_u is not None and p.place is not None:
            uniform = None if p.uniform is None or p.samples is not None else p.uniform[b, :, d]
            at_u, drawn = averaged(p.student_u, p.place[b] * p.latents, p.latents, d, uniform)
            at_u = p.group.mean(at_u)
            if drawn is not None and self.sums.samples is not None:
                self.sums.samples[b, :, d] = p.group.concatenate(drawn, 1)
        return teacher, at_u

    def student_rows(self, chunk: Chunk) -> tuple[Tensor, Tensor]:
        """Prediction numbers and positions of the student's n·L rows."""
        count = self.inputs.latents
        number = chunk.b[:, None] * count + torch.arange(count, device=chunk.b.device)
        return number.reshape(-1), chunk.d.repeat_interleave(count)

    def student_log_probs(self, chunk: Chunk) -> tuple[Tensor, Tensor]:
        """log p(·; λ_i) `(n, L, S)` and log p̄ `(n, S)` of the student at t."""
        number, d = self.student_rows(chunk)
        log_p = self.head.logits(self.student.hidden[number, d], d)
        log_p = log_p.view(len(chunk.b), self.inputs.latents, self.symbols)
        log_mean = log_p.new_empty(len(chunk.b), self.symbols)
        for rows in groups(len(chunk.b), log_p[0].numel(), log_p):
            log_mean[rows] = normalise_(log_p[rows])
        return log_p, self.inputs.group.log_mean(log_mean)

    def second_pass(self, chunks: list[Chunk], out: LossOutput) -> None:
        """Gradients at the hidden states of the student at t and at its head."""
        hidden = self.student.hidden
        self.head.start()
        # the loss scale of fp16 training multiplies this gradient later, so float16 would round it to zero here
        dtype = torch.float32 if hidden.dtype is torch.float16 else hidden.dtype
        out.hidden_grad = torch.zeros_like(hidden, dtype=dtype)
        for chunk in chunks:
            if not chunk.keep_targets:
                targets = self.targets(chunk)
                self.store_targets(chunk, *self.student_log_probs(chunk), *targets)
            elif chunk.log_p is None:
                chunk.log_p, _ = self.student_log_probs(chunk)
            dz = self.at_logits(chunk)
            number, d = self.student_rows(chunk)
            out.hidden_grad[number, d] = self.head.backward(hidden[number, d], d, dz).to(dtype)
            chunk.log_p = chunk.shift = chunk.single = None
        out.head_grads = self.head.finish()

    def at_logits(self, chunk: Chunk) -> Tensor:
        """Gradient of the batch's mean loss at the logits, `(n·L, S)`, in place of the log-probabilities."""
        assert chunk.log_p is not None
        symbols = self.sums.configurations(chunk.b, chunk.d)
        for rows in groups(len(chunk.b), chunk.log_p[0].numel(), chunk.log_p):
            log_p = chunk.log_p[rows]
            sparse = self.sums.symbol_weights(self.shares, chunk.b[rows], self.sums.at(log_p, symbols[rows]))
            parts = [None if x is None else x[rows] for x in (chunk.shift, chunk.single)]
            logit_gradient(self.inputs.all_latents, log_p, symbols[rows], sparse.to(log_p.dtype), *parts)
        return chunk.log_p.flatten(0, 1)


def normalise_(z: Tensor) -> Tensor:
    """Logits `(n, L, S)` become log p(·; λ_i) in place; returns log p̄ `(n, S)`, p̄ their mean over λ."""
    count = z.shape[1]
    weight = z.sub_(z.amax(-1, keepdim=True)).exp()
    total = weight.sum(-1)
    z.sub_(total.log()[..., None])
    if z.device.type == "cpu":
        mean = product((1 / (count * total))[:, None], weight).squeeze(1)
        if not len(mean) or float(mean.detach().min()) >= torch.finfo(mean.dtype).tiny * 2**24:
            return mean.log_()
    # the mean of a symbol that is improbable under every λ may underflow; on a GPU, looking would cost a wait
    return torch.logsumexp(z, 1) - math.log(count)


class FusedLoss(Protocol):
    """A loss of hidden states and head weights in one call."""

    head: LinearHead | OpaqueHead

    def run(self, gradient: bool, diagnostics: bool) -> LossOutput:
        """Values per sample and, with `gradient`, the gradients of their mean."""


class _Fused(torch.autograd.Function):
    """(hidden states of the student at t, head weights) -> mean loss; the forward pass computes the gradient too."""

    @staticmethod
    def forward(
        ctx: Any, loss: FusedLoss, gradient: bool, diagnostics: bool, box: list[LossOutput], *tensors: Tensor
    ) -> Tensor:
        out = loss.run(gradient, diagnostics)
        ctx.grads = [out.hidden_grad, *out.head_grads]
        out.hidden_grad, out.head_grads = None, []
        box.append(out)
        return out.total.mean()

    @staticmethod
    @once_differentiable
    def backward(ctx: Any, grad: Tensor) -> Any:
        one = bool(grad == 1)
        grads = [g if g is None or one else g.mul_(grad.to(g.dtype)) for g in ctx.grads]
        ctx.grads = []
        return (None, None, None, None, *grads)


def evaluate(inputs: LossInputs, student: Prediction, diagnostics: bool = True) -> tuple[Tensor, LossOutput]:
    """Mean loss with a graph behind it, and the values per sample."""
    return differentiable(ChunkedLoss(inputs, student), student.hidden, diagnostics)


def differentiable(loss: FusedLoss, hidden: Tensor, diagnostics: bool = False) -> tuple[Tensor, LossOutput]:
    """Mean of a loss whose forward pass computes the gradient too, with a graph, and the values per sample."""
    box: list[LossOutput] = []
    tensors = [hidden, *loss.head.parameters]
    gradient = torch.is_grad_enabled() and any(x.requires_grad for x in tensors)
    total = _Fused.apply(loss, gradient, diagnostics, box, *tensors)  # type: ignore[no-untyped-call]
    return total, box[0]


def negative_log_likelihood(
    prediction: Prediction, x0: Tensor, weight: Tensor, chunk_bytes: int, cache_bytes: int
) -> tuple[Tensor, Tensor]:
    """Mean of weight · -log p(x0|x_t; λ) with a graph, and -log p(x0|x_t; λ) `(N,)` of one λ per sample."""
    zero = torch.zeros_like(weight)
    weights = TermWeights(distil=zero, consis=zero, corr=weight, marginal=zero)
    inputs = LossInputs(prediction.x_t, 1, weights, "none", x0=x0, chunk_bytes=chunk_bytes, cache_bytes=cache_bytes)
    total, out = evaluate(inputs, prediction, diagnostics=False)
    return total, out.terms["corr"]
