"""The loss as a pure function of predictions, samples and weights, worked in chunks of rows.

A row is an unknown position of one sample; all L latents of a row are worked together. Known positions are certain
under every model and contribute exactly zero. Two passes: the first collects the sums over positions that the mixture's
joint law needs, the second turns them into the gradient at the logits, which is known in closed form.
"""

from __future__ import annotations

import math
from collections.abc import Iterator
from dataclasses import dataclass, field

import torch
from torch import Tensor

from di4c_cli.denoiser import Prediction
from di4c_cli.objective.head import head_of
from di4c_cli.objective.health import Probe
from di4c_cli.objective.targets import averaged, wide


@dataclass(frozen=True)
class Weights:
    """Weight of each term for each sample, `(B,)`; a term of weight 0 is neither computed nor reported."""

    distil: Tensor
    consis: Tensor
    corr: Tensor
    marginal: Tensor


@dataclass(frozen=True)
class Problem:
    """One batch of B samples with L latents each: all that the student at t is compared with.

    `teacher`: predictions of x_t, numbers b·K + k for sample b, K = 1 for a product teacher. `student_u`: predictions
    of x_u, numbers place[b]·L + j for the samples with place[b] ≥ 0. The j-th consistency sample x_j is drawn from
    the j-th of these with `uniform` (B, L, D), or given as `samples` (B, M, D).
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
    chunk_bytes: int = 32 << 20
    cache_bytes: int = 128 << 20


@dataclass
class Outcome:
    """Values per sample `(B,)`, the configurations' sums, and the gradients when they were asked for."""

    total: Tensor
    terms: dict[str, Tensor]
    health: dict[str, Tensor]
    hidden_grad: Tensor | None = None
    head_grads: list[Tensor] = field(default_factory=list)
    samples: Tensor | None = None


@dataclass
class Chunk:
    """Rows (b, d), each `(n,)`, that share the same kinds of terms; what pass 1 keeps for pass 2."""

    b: Tensor
    d: Tensor
    consis: bool
    at: Tensor | None = None  # (n, X) symbols of the configurations at these rows
    log_p: Tensor | None = None  # (n, L, S)
    pull: Tensor | None = None  # (n, S) log of R / (L p̄)
    direct: Tensor | None = None  # (n, S) target of every single λ


class Core:
    """Runs a `Problem` for a student at t, whose prediction of sample b under λ_i has the number b·L + i.

    X = M + 1 configurations per sample: the M consistency samples, then x0.
    """

    def __init__(self, problem: Problem, student: Prediction) -> None:
        p = self.problem = problem
        self.student = student
        self.batch, self.length = p.x_t.shape
        self.symbols = student.process.symbols
        w = p.weights
        self.has_teacher = p.teacher is not None and bool(((w.distil != 0) | (w.marginal != 0)).any())
        self.has_consis = p.student_u is not None and bool((w.consis != 0).any())
        self.draws = 0
        if self.has_consis:
            self.draws = p.latents if p.samples is None else p.samples.shape[1]
        self.configs = self.draws + (p.x0 is not None)
        device = p.x_t.device
        wide_float = torch.float32 if device.type == "mps" else torch.float64
        zeros = {"dtype": wide_float, "device": device}
        self.ratio = torch.zeros(self.batch, p.latents, self.configs, **zeros)  # Σ_d log p_i - log p̄
        self.product = torch.zeros(self.batch, self.configs, **zeros)  # Σ_d log p̄
        names = ("distil", "consis_indep", "marginal", "target_entropy")
        self.sums = {name: torch.zeros(self.batch, **zeros) for name in names}
        self.samples = p.samples
        if self.draws and p.samples is None:
            self.samples = p.x_t[:, None].repeat(1, self.draws, 1)

    def chunks(self) -> list[Chunk]:
        """Rows of unknown positions, those with a consistency term first, cut to the chunk's memory."""
        p, w = self.problem, self.problem.weights
        wanted = (w.distil != 0) | (w.consis != 0) | (w.corr != 0) | (w.marginal != 0)
        unknown = self.student.process.unknown(p.x_t) & wanted[:, None]
        consis = (w.consis != 0) & self.has_consis
        out = []
        for kind in (True, False):
            b, d = (unknown & (consis == kind)[:, None]).nonzero(as_tuple=True)
            size = max(1, int(p.chunk_bytes // (4 * p.latents * self.symbols)))
            out += [Chunk(bs, ds, kind) for bs, ds in zip(b.split(size), d.split(size)) if len(bs)]
        return out

    def targets(self, chunk: Chunk) -> tuple[Tensor | None, Tensor | None]:
        """Teacher marginals K and the later student's mean law P at the rows, `(n, S)` each; draws x_j on the way."""
        p, b, d = self.problem, chunk.b, chunk.d
        teacher = later = None
        if self.has_teacher:
            assert p.teacher is not None
            teacher, _ = averaged(p.teacher, b * p.teacher_latents, p.teacher_latents, d)
        if chunk.consis:
            assert p.student_u is not None and p.place is not None and self.samples is not None
            uniform = None if p.samples is not None or p.uniform is None else p.uniform[b, :, d]
            later, drawn = averaged(p.student_u, p.place[b] * p.latents, p.latents, d, uniform)
            if drawn is not None:
                self.samples[b, :, d] = drawn
        return teacher, later

    def log_probs(self, chunk: Chunk) -> Tensor:
        """log p(·; λ_i) of the student at t, `(n, L, S)`."""
        p = self.problem
        sample, d = self.student_rows(chunk)
        z = wide(self.student.logits(sample, d))
        z = z.sub_(torch.logsumexp(z, -1, keepdim=True)) if len(z) else z
        return z.view(len(chunk.b), p.latents, self.symbols)

    def student_rows(self, chunk: Chunk) -> tuple[Tensor, Tensor]:
        """Samples and positions of the student's `(n·L)` rows."""
        count = self.problem.latents
        sample = chunk.b[:, None] * count + torch.arange(count, device=chunk.b.device)
        return sample.reshape(-1), chunk.d.repeat_interleave(count)

    def configurations(self, chunk: Chunk) -> Tensor:
        """Symbols of the X configurations at the rows, `(n, X)`."""
        parts = []
        if self.draws:
            assert self.samples is not None
            parts.append(self.samples[chunk.b, :, chunk.d])
        if self.problem.x0 is not None:
            parts.append(self.problem.x0[chunk.b, chunk.d][:, None])
        if not parts:
            return chunk.b.new_zeros(len(chunk.b), 0)
        # a masked symbol can only stand where a sample has no consistency term, and there its weight is 0
        return torch.cat(parts, 1).clamp_max(self.symbols - 1)

    def first_pass(self, chunk: Chunk, log_p: Tensor, teacher: Tensor | None, later: Tensor | None) -> None:
        """Add this chunk's share to every sum; keep the pulls on the logits."""
        p, w, b = self.problem, self.problem.weights, chunk.b
        chunk.at = self.configurations(chunk)
        at_symbol = self.gathered(log_p, chunk.at)
        at_mean = torch.logsumexp(at_symbol, 1) - math.log(p.latents)
        self.ratio.index_add_(0, b, at_symbol - at_mean[:, None])
        self.product.index_add_(0, b, at_mean)
        mean = log_mean(log_p)
        target, direct = torch.zeros_like(mean), None
        if teacher is not None:
            entropy = torch.xlogy(teacher, teacher).sum(-1)
            self.add("marginal", b, entropy - (teacher * mean).sum(-1))
            target += w.marginal[b, None].to(mean) * teacher
            if bool((w.distil[b] != 0).any()):
                single = (log_p @ teacher[..., None]).squeeze(-1).mean(1)
                self.add("distil", b, entropy - single)
                direct = w.distil[b, None].to(mean) * teacher
        if later is not None:
            entropy = torch.xlogy(later, later).sum(-1)
            self.add("target_entropy", b, -entropy)
            weight = w.consis[b, None].to(mean) * later
            if p.control_variate == "marginal":
                self.add("consis_indep", b, entropy - (later * mean).sum(-1))
                target += weight
            elif p.control_variate == "convex":
                single = (log_p @ later[..., None]).squeeze(-1).mean(1)
                self.add("consis_indep", b, entropy - single)
                direct = weight if direct is None else direct + weight
        chunk.pull = target.log_().sub_(mean).sub_(math.log(p.latents))
        chunk.direct = direct

    def gathered(self, log_p: Tensor, at: Tensor) -> Tensor:
        """log p(x; λ_i) at the configurations' symbols, `(n, L, X)` in the accumulators' dtype."""
        index = at[:, None].expand(-1, log_p.shape[1], -1)
        return log_p.gather(2, index).to(self.ratio.dtype)

    def add(self, name: str, b: Tensor, value: Tensor) -> None:
        self.sums[name].index_add_(0, b, value.to(self.sums[name].dtype))

    def outcome(self) -> Outcome:
        """Terms per sample from the sums; joint log-likelihoods by log-sum-exp over λ after the sum over positions."""
        p, w = self.problem, self.problem.weights
        captured = torch.logsumexp(self.ratio, 1) - math.log(p.latents)  # J - M, (B, X)
        terms = {name: self.sums[name] for name in ("distil", "marginal")}
        health = {}
        if self.draws:
            first = captured[:, : self.draws]
            if p.control_variate == "none":
                first = first + self.product[:, : self.draws]
            elif p.control_variate == "convex":
                first = first - self.ratio[:, :, : self.draws].mean(1)
            terms["consis_corr"] = -first.mean(1)
            health["correlation_consis"] = captured[:, : self.draws].mean(1)
            health["target_entropy"] = self.sums["target_entropy"]
        else:
            terms["consis_corr"] = torch.zeros_like(self.sums["distil"])
        terms["consis_indep"] = self.sums["consis_indep"]
        terms["consis"] = terms["consis_corr"] + terms["consis_indep"]
        terms["corr"] = torch.zeros_like(terms["consis"])
        if p.x0 is not None:
            health["correlation_data"] = captured[:, -1]
            terms["nll"] = -(captured[:, -1] + self.product[:, -1])
            terms["corr"] = terms["nll"] if p.control_variate == "none" else -captured[:, -1]
        total = sum_terms(w, terms)
        return Outcome(total, terms, health, samples=self.samples)

    def sparse(self, chunk: Chunk, log_p: Tensor) -> Tensor:
        """Weight of each configuration's symbol in the gradient, `(n, L, X)`.

        -∂(log p - log p̄)/∂z_i = (w_i - v_i)(p_i - 1_x): w_i is λ_i's posterior given the whole configuration, v_i
        given the symbol at this position alone. Without a variate v_i is absent; the convex bound has 1/L instead.
        """
        p, w = self.problem, self.problem.weights
        assert chunk.at is not None
        joint = torch.softmax(self.ratio, 1)[chunk.b]
        single = torch.softmax(self.gathered(log_p, chunk.at), 1)
        single = torch.zeros_like(single) if p.control_variate == "none" else single
        if p.control_variate == "convex":
            single[:, :, : self.draws] = 1 / p.latents
        scale = torch.zeros(self.batch, self.configs, dtype=joint.dtype, device=joint.device)
        if self.draws:
            scale[:, : self.draws] = (w.consis / self.draws)[:, None]
        if p.x0 is not None:
            scale[:, -1] = w.corr
        return (joint - single) * scale[chunk.b][:, None]

    def second_pass(self, chunk: Chunk, log_p: Tensor) -> Tensor:
        """Gradient of Σ_b total_b at the logits `(n, L, S)`; overwrites log_p.

        Every term has the form c_i p_i - G_i with c_i = Σ_s G_i: G collects R p_i / (L p̄) from the marginal
        cross-entropies, target/L from those of single λ, and the sparse weights at the configurations' symbols.
        """
        assert chunk.at is not None and chunk.pull is not None
        count = self.problem.latents
        sparse = self.sparse(chunk, log_p).to(log_p.dtype)
        level = sparse.sum(-1)
        direct = None if chunk.direct is None else chunk.direct / count
        if direct is not None:
            level = level + direct.sum(-1, keepdim=True)
        for i in range(count):
            pulled = (log_p[:, i] + chunk.pull).exp_()
            scale = (level[:, i] + pulled.sum(-1))[:, None]
            grad = log_p[:, i].exp_().mul_(scale).sub_(pulled)
            if direct is not None:
                grad.sub_(direct)
        return log_p.scatter_add_(2, chunk.at[:, None].expand(-1, count, -1), -sparse)

    def run(self, gradient: bool) -> Outcome:
        """Both passes; `gradient` False stops after the first."""
        chunks = self.chunks()
        probe = Probe(self.problem, chunks)
        for chunk, keep in zip(chunks, self.kept(chunks)):
            teacher, later = self.targets(chunk)
            log_p = self.log_probs(chunk)
            self.first_pass(chunk, log_p, teacher, later)
            probe.remember(chunk, log_p, teacher, later)
            chunk.log_p = log_p if keep and gradient else None
        out = self.outcome()
        out.health |= probe.health(self)
        if gradient:
            self.gradients(chunks, out)
        return out

    def kept(self, chunks: list[Chunk]) -> Iterator[bool]:
        """Which chunks keep their log-probabilities between the passes: as many as the cache holds."""
        left = self.problem.cache_bytes - sum(len(c.b) for c in chunks) * self.symbols * 4
        for chunk in chunks:
            left -= len(chunk.b) * self.problem.latents * self.symbols * 4
            yield left >= 0

    def gradients(self, chunks: list[Chunk], out: Outcome) -> None:
        """Gradient of the batch's mean loss at the hidden states of the student at t and at its head."""
        student = self.student
        head = head_of(student.network, student.hidden)
        head.start()
        out.hidden_grad = torch.zeros_like(student.hidden)
        for chunk in chunks:
            log_p = self.log_probs(chunk) if chunk.log_p is None else chunk.log_p
            dz = self.second_pass(chunk, log_p).flatten(0, 1).div_(self.batch)
            sample, d = self.student_rows(chunk)
            rows = head.pull(student.hidden[sample, d], d, dz)
            out.hidden_grad[sample, d] = rows.to(out.hidden_grad.dtype)
            chunk.log_p = chunk.pull = chunk.direct = None
        out.head_grads = head.grads


def log_mean(log_p: Tensor) -> Tensor:
    """log p̄ `(n, S)`, the mean over λ of p(·; λ_i); exact where all of them underflow."""
    n, count, symbols = log_p.shape
    mean = log_p.new_zeros(n, symbols)
    for i in range(count):
        mean += log_p[:, i].exp()
    if n and float(mean.min()) < torch.finfo(mean.dtype).tiny * 2**24:
        return torch.logsumexp(log_p, 1) - math.log(count)
    return mean.div_(count).log_()


def sum_terms(weights: Weights, terms: dict[str, Tensor]) -> Tensor:
    """Σ weight·term `(B,)` (eq. loss-cifar10, loss-maskgit, loss-sdtt: the same sum with other weights)."""
    names = ("distil", "consis", "corr", "marginal")
    # a term of weight 0 may hold anything; it must not turn the total into NaN
    parts = [torch.where(getattr(weights, n) != 0, getattr(weights, n) * terms[n], 0.0) for n in names]
    return torch.stack(parts).sum(0)
