"""Every term of the loss as sums over rows, and what each row contributes to the gradient.

A row is an unknown position of one sample. X = M + 1 configurations are followed per sample: the M
consistency samples, then x0. For a configuration x, Σ_d log p(x^d; λ_i) - log p̄(x^d) is accumulated, not
the two sums: the correlation is their difference, exactly 0 for one latent.
"""

from __future__ import annotations

import math

import torch
from torch import Tensor

from di4c_cli.draw import finest
from di4c_cli.objective.problem import Problem, Weights
from di4c_cli.objective.targets import product

TERMS = ("distil", "consis", "corr", "marginal")


class Sums:
    """Accumulators over the rows of a batch, and the terms they make."""

    def __init__(self, problem: Problem, symbols: int) -> None:
        self.problem, self.symbols = problem, symbols
        batch, device = len(problem.x_t), problem.x_t.device
        self.dtype = finest(device)
        self.draws = problem.draws
        self.configs = self.draws + (problem.x0 is not None)
        self.samples = problem.samples
        if self.draws and self.samples is None:
            self.samples = problem.x_t[:, None].repeat(1, self.draws, 1)
        self.ratio = torch.zeros(batch, problem.latents, self.configs, dtype=self.dtype, device=device)
        self.product = torch.zeros(batch, self.configs, dtype=self.dtype, device=device)
        names = ("distil", "consis_indep", "marginal", "target_entropy")
        self.rows = {name: torch.zeros(batch, dtype=self.dtype, device=device) for name in names}

    def configurations(self, b: Tensor, d: Tensor) -> Tensor:
        """Symbols of the configurations at rows, `(n, X)`."""
        parts = []
        if self.samples is not None and self.draws:
            parts.append(self.samples[b, :, d])
        if self.problem.x0 is not None:
            parts.append(self.problem.x0[b, d][:, None])
        if not parts:
            return b.new_zeros(len(b), 0)
        # a mask can only stand where a sample has no consistency term, and there its weight is 0
        return torch.cat(parts, 1).clamp_max(self.symbols - 1)

    def at(self, log_p: Tensor, symbols: Tensor) -> Tensor:
        """log p(x; λ_i) at the configurations' symbols `(n, X)` from log_p `(n, L, S)` -> `(n, L, X)`."""
        index = symbols[:, None].expand(-1, log_p.shape[1], -1)
        return log_p.gather(2, index).to(self.dtype)

    def add(
        self,
        b: Tensor,
        symbols: Tensor,
        log_p: Tensor,
        log_mean: Tensor,
        teacher: Tensor | None,
        later: Tensor | None,
    ) -> None:
        """Rows b `(n,)`: the student's log_p `(n, L, S)`, log p̄ `(n, S)`, targets K and P `(n, S)`."""
        p = self.problem
        single = self.at(log_p, symbols)
        mean = torch.logsumexp(single, 1) - math.log(p.latents)
        self.ratio.index_add_(0, b, single - mean[:, None])
        self.product.index_add_(0, b, mean)
        if teacher is not None:
            entropy = negative_entropy(teacher)
            self._count("marginal", b, entropy - (teacher * log_mean).sum(-1))
            if bool((p.weights.distil[b] != 0).any()):
                self._count("distil", b, entropy - over_latents(log_p, teacher))
        if later is not None:
            entropy = negative_entropy(later)
            self._count("target_entropy", b, -entropy)
            if p.control_variate == "marginal":
                self._count("consis_indep", b, entropy - (later * log_mean).sum(-1))
            elif p.control_variate == "convex":
                self._count("consis_indep", b, entropy - over_latents(log_p, later))

    def _count(self, name: str, b: Tensor, value: Tensor) -> None:
        self.rows[name].index_add_(0, b, value.to(self.dtype))

    @property
    def captured(self) -> Tensor:
        """log p(x) - log p̄(x) of the configurations, `(B, X)`: log-sum-exp over λ after the sum over d."""
        return torch.logsumexp(self.ratio, 1) - math.log(self.problem.latents)

    def terms(self) -> dict[str, Tensor]:
        """Unweighted terms per sample, `(B,)`: eq. consis-cv, L_corr, eq. marginal-loss, distil surrogate."""
        p, captured = self.problem, self.captured
        out = {"distil": self.rows["distil"], "marginal": self.rows["marginal"]}
        first = captured[:, : self.draws]
        if p.control_variate == "none":
            first = first + self.product[:, : self.draws]
        elif p.control_variate == "convex":
            first = first - self.ratio[:, :, : self.draws].mean(1)
        zero = torch.zeros_like(out["distil"])
        out["consis_corr"] = -first.mean(1) if self.draws else zero
        out["consis_indep"] = self.rows["consis_indep"]
        out["consis"] = out["consis_corr"] + out["consis_indep"]
        out["corr"] = zero
        if p.x0 is not None:
            out["nll"] = -(captured[:, -1] + self.product[:, -1])
            out["corr"] = out["nll"] if p.control_variate == "none" else -captured[:, -1]
        return out

    def sparse(self, weights: Weights, b: Tensor, single: Tensor) -> Tensor:
        """Pull of the configurations' symbols on the logits, `(n, L, X)`; `single` = log p(x; λ_i) there.

        ∂(log p̄ - log p)/∂z_i = (w_i - v_i)(p_i - 1_x): w_i is λ_i's posterior given the whole
        configuration, v_i given the symbol at this row alone. Without a variate v_i is absent; the convex
        bound has 1/L instead.
        """
        p = self.problem
        joint = torch.softmax(self.ratio, 1)[b]
        alone = torch.softmax(single, 1)
        if p.control_variate == "none":
            alone.zero_()
        elif p.control_variate == "convex":
            alone[:, :, : self.draws] = 1 / p.latents
        scale = torch.zeros(len(p.x_t), self.configs, dtype=joint.dtype, device=joint.device)
        if self.draws:
            scale[:, : self.draws] = (weights.consis / self.draws)[:, None]
        if p.x0 is not None:
            scale[:, -1] = weights.corr
        return (joint - alone) * scale[b][:, None]


def negative_entropy(law: Tensor) -> Tensor:
    """Σ_s law log law `(n,)`, with 0 log 0 = 0; several times faster than xlogy."""
    return (law.clamp_min(torch.finfo(law.dtype).tiny).log_().mul_(law)).sum(-1)


def over_latents(log_p: Tensor, law: Tensor) -> Tensor:
    """Mean over λ of Σ_s law(s) log p(s; λ_i), `(n,)`."""
    return product(log_p, law.to(log_p.dtype)[..., None]).squeeze(-1).mean(1)


def aims(
    weights: Weights, variate: str, b: Tensor, teacher: Tensor | None, later: Tensor | None
) -> tuple[Tensor | None, Tensor | None]:
    """Weighted target laws at rows, `(n, S)` each: R of the mixture's marginal and that of every single λ."""
    mixture = single = None
    if teacher is not None:
        mixture = weights.marginal[b, None].to(teacher) * teacher
        if bool((weights.distil[b] != 0).any()):
            single = weights.distil[b, None].to(teacher) * teacher
    if later is not None and variate != "none":
        law = weights.consis[b, None].to(later) * later
        if variate == "marginal":
            mixture = law if mixture is None else mixture.add_(law)
        else:
            single = law if single is None else single.add_(law)
    return mixture, single


def shift_of(mixture: Tensor | None, log_mean: Tensor, latents: int) -> Tensor | None:
    """log of R / (L p̄) `(n, S)`, what the mixture's target R adds to each log p(·; λ_i); written over R."""
    return None if mixture is None else mixture.log_().sub_(log_mean).sub_(math.log(latents))


def logit_gradient(
    log_p: Tensor, symbols: Tensor, sparse: Tensor, shift: Tensor | None, single: Tensor | None
) -> Tensor:
    """Gradient at the logits `(n, L, S)`, written over log_p.

    Every term has the form c_i p_i - G_i with c_i = Σ_s G_i. G collects R p_i / (L p̄) from cross-entropies
    of the marginal, law/L from those of single λ, and the sparse weights `(n, L, X)` at `symbols` (n, X).
    In logarithms, so that a symbol which every λ holds for impossible still pulls.
    """
    count = log_p.shape[1]
    level = sparse.sum(-1, keepdim=True)
    pulled = None
    if shift is not None:
        pulled = (log_p + shift[:, None]).exp_()
        level = level + pulled.sum(-1, keepdim=True)
    if single is not None:
        single = (single / count)[:, None]
        level = level + single.sum(-1, keepdim=True)
    grad = log_p.exp_().mul_(level)
    for part in (pulled, single):
        if part is not None:
            grad.sub_(part)
    return grad.scatter_add_(2, symbols[:, None].expand(-1, count, -1), -sparse)


def weighted(weights: Weights, terms: dict[str, Tensor]) -> Tensor:
    """Σ weight·term `(B,)` (eq. loss-cifar10, loss-maskgit, loss-sdtt: one sum, other weights)."""
    # a term of weight 0 was not computed; it must not turn the total into anything
    parts = [torch.where(getattr(weights, n) != 0, getattr(weights, n) * terms[n], 0.0) for n in TERMS]
    return torch.stack(parts).sum(0)
