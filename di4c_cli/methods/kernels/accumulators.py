"""The terms of the loss as sums over rows, and the gradient at the logits of each row.

A row is an unknown position of one sample. X = M + 1 configurations are followed per sample: the M
consistency samples, then x0. For a configuration x, Σ_d log p(x^d; λ_i) - log p̄(x^d) is accumulated, not
the two sums: their difference, the correlation, is then exactly 0 for one latent.
"""

from __future__ import annotations

import math

import torch
from torch import Tensor

from di4c_cli.draw import finest
from di4c_cli.methods.kernels.inputs import LossInputs, TermWeights
from di4c_cli.methods.kernels.targets import product

TERMS = ("distil", "consis", "corr", "marginal")


class Accumulators:
    """Accumulators over the rows of a batch, and the terms they make."""

    def __init__(self, inputs: LossInputs, symbols: int) -> None:
        self.inputs, self.symbols = inputs, symbols
        batch, device = len(inputs.x_t), inputs.x_t.device
        self.dtype = finest(device)
        self.draws = inputs.draws
        self.configs = self.draws + (inputs.x0 is not None)
        self.samples = inputs.samples
        if self.draws and self.samples is None:
            self.samples = inputs.x_t[:, None].repeat(1, self.draws, 1)
        self.ratio = torch.zeros(batch, inputs.latents, self.configs, dtype=self.dtype, device=device)
        self.product = torch.zeros(batch, self.configs, dtype=self.dtype, device=device)
        names = ("distil", "consis_indep", "marginal", "target_entropy")
        self.rows = {name: torch.zeros(batch, dtype=self.dtype, device=device) for name in names}

    def configurations(self, b: Tensor, d: Tensor) -> Tensor:
        """Symbols of the configurations at rows, `(n, X)`."""
        parts = []
        if self.samples is not None and self.draws:
            parts.append(self.samples[b, :, d])
        if self.inputs.x0 is not None:
            parts.append(self.inputs.x0[b, d][:, None])
        if not parts:
            return b.new_zeros(len(b), 0)
        # masks occur only in samples without a consistency term, where the weight is 0
        return torch.cat(parts, 1).clamp_max(self.symbols - 1)

    def at(self, log_p: Tensor, symbols: Tensor) -> Tensor:
        """log p(x; λ_i) at the configurations' symbols `(n, X)` from log_p `(n, L, S)` -> `(n, L, X)`."""
        index = symbols[:, None].expand(-1, log_p.shape[1], -1)
        return log_p.gather(2, index).to(self.dtype)

    def add(
        self, b: Tensor, symbols: Tensor, log_p: Tensor, log_mean: Tensor, teacher: Tensor | None, at_u: Tensor | None
    ) -> None:
        """Rows b `(n,)`: the student's log_p `(n, L, S)`, log p̄ `(n, S)`, targets K and P `(n, S)`."""
        p = self.inputs
        single = self.at(log_p, symbols)
        mean = self.log_mean(single)
        self.ratio.index_add_(0, b, single - mean[:, None])
        self.product.index_add_(0, b, mean)
        if teacher is not None:
            entropy = negative_entropy(teacher)
            self._count("marginal", b, entropy - (teacher * log_mean).sum(-1))
            if p.weights.present["distil"]:
                self._count("distil", b, entropy - mean_cross_entropy(log_p, teacher))
        if at_u is not None:
            entropy = negative_entropy(at_u)
            self._count("target_entropy", b, -entropy)
            if p.control_variate == "marginal":
                self._count("consis_indep", b, entropy - (at_u * log_mean).sum(-1))
            elif p.control_variate == "convex":
                self._count("consis_indep", b, entropy - mean_cross_entropy(log_p, at_u))

    def log_mean(self, single: Tensor) -> Tensor:
        """log p̄ `(n, X)` from log p(x; λ_i) `(n, L, X)`."""
        return self.inputs.group.log_mean(torch.logsumexp(single, 1) - math.log(self.inputs.latents))

    def collect(self) -> None:
        """Complete the sums with those of the other processes of the group, when all rows are added."""
        group, names = self.inputs.group, list(self.rows)
        self.ratio = group.concatenate(self.ratio, 1)
        means = group.mean(torch.stack([self.rows[name] for name in names]))
        self.rows = dict(zip(names, means))

    def _count(self, name: str, b: Tensor, value: Tensor) -> None:
        self.rows[name].index_add_(0, b, value.to(self.dtype))

    @property
    def captured(self) -> Tensor:
        """log p(x) - log p̄(x) of the configurations, `(B, X)`: log-sum-exp over λ after the sum over d."""
        return torch.logsumexp(self.ratio, 1) - math.log(self.inputs.all_latents)

    def terms(self) -> dict[str, Tensor]:
        """Unweighted terms per sample, `(B,)`: eq. consis-cv, L_corr, eq. marginal-loss, distil surrogate."""
        p, captured = self.inputs, self.captured
        # computed for a whole chunk if one of its samples has the term
        distil = torch.where(p.weights.distil != 0, self.rows["distil"], 0.0)
        out = {"distil": distil, "marginal": self.rows["marginal"]}
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

    def symbol_weights(self, weights: TermWeights, b: Tensor, single: Tensor) -> Tensor:
        """Gradient weights at the symbols of the configurations, `(n, L, X)`; `single` = log p(x; λ_i) there.

        ∂(log p̄ - log p)/∂z_i = (w_i - v_i)(p_i - 1_x): w_i is λ_i's posterior given the whole
        configuration, v_i given the symbol at this row alone. Without a variate v_i is absent; the convex
        bound has 1/L instead.
        """
        p = self.inputs
        joint = p.group.own(torch.softmax(self.ratio, 1))[b]
        alone = (single - self.log_mean(single)[:, None]).exp_().div_(p.all_latents)
        if p.control_variate == "none":
            alone.zero_()
        elif p.control_variate == "convex":
            alone[:, :, : self.draws] = 1 / p.all_latents
        scale = torch.zeros(len(p.x_t), self.configs, dtype=joint.dtype, device=joint.device)
        if self.draws:
            scale[:, : self.draws] = (weights.consis / self.draws)[:, None]
        if p.x0 is not None:
            scale[:, -1] = weights.corr
        return (joint - alone) * scale[b][:, None]


def negative_entropy(p: Tensor) -> Tensor:
    """Σ_s p log p `(n,)`, with 0 log 0 = 0; several times faster than xlogy."""
    return (p.clamp_min(torch.finfo(p.dtype).tiny).log_().mul_(p)).sum(-1)


def mean_cross_entropy(log_p: Tensor, target: Tensor) -> Tensor:
    """Mean over λ of Σ_s target(s) log p(s; λ_i), `(n,)`."""
    return product(log_p, target.to(log_p.dtype)[..., None]).squeeze(-1).mean(1)


def weighted_targets(
    weights: TermWeights, distil: bool, variate: str, b: Tensor, teacher: Tensor | None, at_u: Tensor | None
) -> tuple[Tensor | None, Tensor | None]:
    """Weighted targets at rows, `(n, S)` each: R of the mixture's marginal, and that of every single λ.

    `distil`: whether any sample has a distillation term.
    """
    mixture = single = None
    if teacher is not None:
        mixture = weights.marginal[b, None].to(teacher) * teacher
        if distil:
            single = weights.distil[b, None].to(teacher) * teacher
    if at_u is not None and variate != "none":
        target = weights.consis[b, None].to(at_u) * at_u
        if variate == "marginal":
            mixture = target if mixture is None else mixture.add_(target)
        else:
            single = target if single is None else single.add_(target)
    return mixture, single


def log_target_ratio(mixture: Tensor | None, log_mean: Tensor, latents: int) -> Tensor | None:
    """log of R / (L p̄) `(n, S)`, the offset that the target R adds to each log p(·; λ_i); overwrites R."""
    return None if mixture is None else mixture.log_().sub_(log_mean).sub_(math.log(latents))


def logit_gradient(
    latents: int, log_p: Tensor, symbols: Tensor, sparse: Tensor, shift: Tensor | None, single: Tensor | None
) -> Tensor:
    """Gradient at the logits `(n, L, S)`, or at those of some of L = `latents`; overwrites log_p.

    Every term has the form c_i p_i - G_i with c_i = Σ_s G_i. G collects R p_i / (L p̄) from cross-entropies
    of the marginal, target/L from those of single λ, and the sparse weights `(n, L, X)` at `symbols` (n, X).
    The logarithms keep the gradient of a symbol whose probability underflows under every λ.
    """
    level = sparse.sum(-1, keepdim=True)
    from_mixture = None
    if shift is not None:
        from_mixture = (log_p + shift[:, None]).exp_()
        level = level + from_mixture.sum(-1, keepdim=True)
    if single is not None:
        single = (single / latents)[:, None]
        level = level + single.sum(-1, keepdim=True)
    grad = log_p.exp_().mul_(level)
    for part in (from_mixture, single):
        if part is not None:
            grad.sub_(part)
    return grad.scatter_add_(2, symbols[:, None].expand(-1, log_p.shape[1], -1), -sparse)


def weighted(weights: TermWeights, terms: dict[str, Tensor]) -> Tensor:
    """Σ weight·term `(B,)` (eq. loss-cifar10, loss-maskgit, loss-sdtt: one sum, other weights)."""
    # a term of weight 0 was not computed and may be NaN
    parts = [torch.where(getattr(weights, n) != 0, getattr(weights, n) * terms[n], 0.0) for n in TERMS]
    return torch.stack(parts).sum(0)
