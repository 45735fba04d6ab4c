"""The loss as a pure function of a `Problem` and a student, worked in chunks of rows.

Known positions are certain under every model and contribute exactly zero, so only unknown ones are rows.
All L latents of a row are worked together. The first pass collects the sums over positions that the
mixture's joint law needs; the second turns them into the gradient at the logits, known in closed form, and
pulls it through the head.
"""

from __future__ import annotations

import math
from dataclasses import dataclass

import torch
from torch import Tensor

from di4c_cli.denoiser import Prediction
from di4c_cli.objective.head import LinearHead, OpaqueHead, head_of
from di4c_cli.objective.health import Probe, Rows
from di4c_cli.objective.problem import Outcome, Problem
from di4c_cli.objective.targets import averaged, groups, product
from di4c_cli.objective.terms import Sums, aims, logit_gradient, shift_of, weighted


@dataclass
class Chunk:
    """Rows (b, d), each `(n,)`, all with a consistency term or all without; what pass 1 keeps for pass 2."""

    b: Tensor
    d: Tensor
    consis: bool
    keep_targets: bool = True
    keep_laws: bool = True
    log_p: Tensor | None = None  # (n, L, S)
    shift: Tensor | None = None  # (n, S)
    single: Tensor | None = None  # (n, S)

    def forget(self, targets: bool = True, laws: bool = True) -> None:
        """Drop what does not fit between the passes, or everything."""
        if laws:
            self.log_p = None
        if targets:
            self.shift = self.single = None


class Core:
    """Runs a problem for a student at t, whose prediction of sample b under λ_i has the number b·L + i."""

    def __init__(self, problem: Problem, student: Prediction) -> None:
        self.problem, self.student = problem, student
        self.symbols = student.process.symbols
        self.shares = problem.weights.divided(len(problem.x_t))  # of the batch's mean
        self.sums = Sums(problem, self.symbols)
        self.head: LinearHead | OpaqueHead = head_of(student.network, student.hidden)

    def run(self, gradient: bool) -> Outcome:
        """Terms of all samples, and with `gradient` the gradient of the batch's mean loss."""
        p = self.problem
        chunks = self.chunks()
        probe = Probe(len(p.x_t), [chunk.b for chunk in chunks], p.x_t.device)
        for number, chunk in enumerate(chunks):
            probe.remember(number, self.first_pass(chunk))
            chunk.forget(not (gradient and chunk.keep_targets), not (gradient and chunk.keep_laws))
        terms = self.sums.terms()
        out = Outcome(weighted(p.weights, terms), terms, probe.health(self.sums))
        if gradient:
            self.second_pass(chunks, out)
        return out

    def chunks(self) -> list[Chunk]:
        """Rows of unknown positions, those with a consistency term first, cut to the chunk's memory."""
        p = self.problem
        unknown = self.student.process.unknown(p.x_t) & p.weights.any[:, None]
        consis = (p.weights.consis != 0) & p.needs_later
        row = self.symbols * torch.finfo(self.head.dtype).bits // 8
        size = max(1, int(p.chunk_bytes // (row * p.latents)))
        out = []
        for kind in (True, False):
            b, d = (unknown & (consis == kind)[:, None]).nonzero(as_tuple=True)
            out += [Chunk(bs, ds, kind) for bs, ds in zip(b.split(size), d.split(size)) if len(bs)]
        self.plan_cache(out, row)
        return out

    def plan_cache(self, chunks: list[Chunk], row: int) -> None:
        """Choose what stays between the passes; the rest is computed again. `row` is S numbers in bytes.

        Targets first: they are L times smaller than the student's laws and cost as much to compute.
        """
        p = self.problem
        laws = 2 if p.control_variate == "convex" or bool((p.weights.distil != 0).any()) else 1
        left = p.cache_bytes
        for chunk in chunks:
            left -= len(chunk.b) * row * laws
            chunk.keep_targets = left >= 0
        for chunk in chunks:
            left -= len(chunk.b) * row * p.latents
            chunk.keep_laws = left >= 0

    def first_pass(self, chunk: Chunk) -> Rows:
        """Add the chunk to the sums; leave log-probabilities and targets in it."""
        teacher, later = self.targets(chunk)
        log_p, log_mean = self.student_laws(chunk)
        symbols = self.sums.configurations(chunk.b, chunk.d)
        for rows in groups(len(chunk.b), log_p[0].numel(), log_p):
            parts = [None if x is None else x[rows] for x in (teacher, later)]
            self.sums.add(chunk.b[rows], symbols[rows], log_p[rows], log_mean[rows], *parts)
        self.aim(chunk, log_p, log_mean, teacher, later)
        return Rows(chunk.b, symbols, log_p, log_mean, teacher, later)

    def aim(
        self, chunk: Chunk, log_p: Tensor, log_mean: Tensor, teacher: Tensor | None, later: Tensor | None
    ) -> None:
        """Leave in the chunk what its gradient needs."""
        p = self.problem
        mixture, chunk.single = aims(self.shares, p.control_variate, chunk.b, teacher, later)
        chunk.log_p, chunk.shift = log_p, shift_of(mixture, log_mean, p.latents)

    def targets(self, chunk: Chunk) -> tuple[Tensor | None, Tensor | None]:
        """Teacher marginals K and the later student's mean law P, `(n, S)` each; draws the x_j on the way."""
        p, b, d = self.problem, chunk.b, chunk.d
        teacher = later = None
        if p.needs_teacher and p.teacher is not None:
            teacher, _ = averaged(p.teacher, b * p.teacher_latents, p.teacher_latents, d)
        if chunk.consis and p.student_u is not None and p.place is not None:
            uniform = None if p.uniform is None or p.samples is not None else p.uniform[b, :, d]
            later, drawn = averaged(p.student_u, p.place[b] * p.latents, p.latents, d, uniform)
            if drawn is not None and self.sums.samples is not None:
                self.sums.samples[b, :, d] = drawn
        return teacher, later

    def student_rows(self, chunk: Chunk) -> tuple[Tensor, Tensor]:
        """Prediction numbers and positions of the student's n·L rows."""
        count = self.problem.latents
        number = chunk.b[:, None] * count + torch.arange(count, device=chunk.b.device)
        return number.reshape(-1), chunk.d.repeat_interleave(count)

    def student_laws(self, chunk: Chunk) -> tuple[Tensor, Tensor]:
        """log p(·; λ_i) `(n, L, S)` and log p̄ `(n, S)` of the student at t."""
        number, d = self.student_rows(chunk)
        log_p = self.head.logits(self.student.hidden[number, d], d)
        log_p = log_p.view(len(chunk.b), self.problem.latents, self.symbols)
        log_mean = log_p.new_empty(len(chunk.b), self.symbols)
        for rows in groups(len(chunk.b), log_p[0].numel(), log_p):
            log_mean[rows] = normalise_(log_p[rows])
        return log_p, log_mean

    def second_pass(self, chunks: list[Chunk], out: Outcome) -> None:
        """Gradients at the hidden states of the student at t and at its head."""
        hidden = self.student.hidden
        self.head.start()
        out.hidden_grad = torch.zeros_like(hidden)
        for chunk in chunks:
            if not chunk.keep_targets:
                targets = self.targets(chunk)
                self.aim(chunk, *self.student_laws(chunk), *targets)
            elif chunk.log_p is None:
                chunk.log_p, _ = self.student_laws(chunk)
            dz = self.at_logits(chunk)
            number, d = self.student_rows(chunk)
            out.hidden_grad[number, d] = self.head.pull(hidden[number, d], d, dz).to(hidden.dtype)
            chunk.forget()
        out.head_grads = self.head.finish()

    def at_logits(self, chunk: Chunk) -> Tensor:
        """Gradient of the batch's mean loss at the logits, `(n·L, S)`, written over the log-probabilities."""
        assert chunk.log_p is not None
        symbols = self.sums.configurations(chunk.b, chunk.d)
        for rows in groups(len(chunk.b), chunk.log_p[0].numel(), chunk.log_p):
            log_p = chunk.log_p[rows]
            sparse = self.sums.sparse(self.shares, chunk.b[rows], self.sums.at(log_p, symbols[rows]))
            parts = [None if x is None else x[rows] for x in (chunk.shift, chunk.single)]
            logit_gradient(log_p, symbols[rows], sparse.to(log_p.dtype), *parts)
        return chunk.log_p.flatten(0, 1)


def normalise_(z: Tensor) -> Tensor:
    """Logits `(n, L, S)` become log p(·; λ_i) in place; returns log p̄ `(n, S)`, p̄ their mean over λ."""
    count = z.shape[1]
    weight = z.sub_(z.amax(-1, keepdim=True)).exp()
    total = weight.sum(-1)
    z.sub_(total.log()[..., None])
    mean = product((1 / (count * total))[:, None], weight).squeeze(1)
    # where all λ agree that a symbol is impossible the mean underflows; its logarithm must not
    if len(mean) and float(mean.detach().min()) < torch.finfo(mean.dtype).tiny * 2**24:
        return torch.logsumexp(z, 1) - math.log(count)
    return mean.log_()
