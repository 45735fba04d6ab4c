"""Diagnostic figures of a batch: influence of λ, captured correlation, gradient norm of every term."""

from __future__ import annotations

from dataclasses import dataclass, replace
from itertools import accumulate

import torch
from torch import Tensor

from di4c_cli.methods.kernels.accumulators import (
    TERMS,
    Accumulators,
    log_target_ratio,
    logit_gradient,
    weighted_targets,
)
from di4c_cli.methods.kernels.inputs import TermWeights
from di4c_cli.methods.latent_group import ALONE, LatentGroup

PROBED_ROWS = 2
"""Rows per sample on which gradient norms and λ-sensitivity are measured; norms are scaled to all rows."""


@dataclass(frozen=True)
class ProbeRows:
    """Rows of pass 1: b `(n,)`, configurations' symbols `(n, X)`, log_p `(n, L, S)`; the rest is `(n, S)`."""

    b: Tensor
    symbols: Tensor
    log_p: Tensor
    log_mean: Tensor
    teacher: Tensor | None
    at_u: Tensor | None

    def take(self, wanted: Tensor) -> ProbeRows:
        """Copies of the wanted rows, by their numbers."""
        teacher, at_u = (None if x is None else x[wanted] for x in (self.teacher, self.at_u))
        return ProbeRows(self.b[wanted], self.symbols[wanted], self.log_p[wanted], self.log_mean[wanted], teacher, at_u)


class Probe:
    """Keeps a few rows of every sample from pass 1 and evaluates them when all sums are known."""

    def __init__(self, batch: int, chunks: list[Tensor], device: torch.device) -> None:
        """`chunks`: sample numbers b of the rows of each chunk; a sample's rows follow each other."""
        b = torch.cat(chunks) if chunks else torch.zeros(0, dtype=torch.long, device=device)
        self.count = torch.zeros(batch, dtype=torch.long, device=device).index_add_(0, b, torch.ones_like(b))
        order = torch.arange(len(b), device=b.device)
        start = torch.full_like(self.count, len(b)).scatter_reduce(0, b, order, "amin")
        n, k = self.count[b], order - start[b]
        # row k of n is wanted where ⌊k PROBED_ROWS / n⌋ has just grown: evenly spaced, PROBED_ROWS of them or all
        wanted = ((k == 0) | (k * PROBED_ROWS // n != (k - 1) * PROBED_ROWS // n)).nonzero().squeeze(1)
        ends = torch.tensor(list(accumulate(map(len, chunks))), dtype=torch.long, device=device)
        counts = torch.searchsorted(wanted, ends).diff(prepend=ends.new_zeros(1)).tolist()
        starts = [0, *accumulate(map(len, chunks))]
        self.wanted = [rows - first for rows, first in zip(wanted.split(counts), starts)] if chunks else []
        self.kept: list[ProbeRows] = []

    def figures(self, sums: Accumulators) -> dict[str, Tensor]:
        """Figures per sample, `(B,)`; those of a sample without rows are 0."""
        out = correlation(sums)
        zero = torch.zeros(len(self.count), dtype=sums.dtype, device=self.count.device)
        seen = zero.clone()
        sensitivity = zero.clone()
        squares = {name: zero.clone() for name in TERMS}
        for rows in self.kept:
            seen.index_add_(0, rows.b, torch.ones_like(rows.b, dtype=seen.dtype))
            sensitivity.index_add_(0, rows.b, pairwise_kl(rows.log_p, sums.inputs.group).to(zero))
            for name, value in squared_gradients(sums, rows).items():
                squares[name].index_add_(0, rows.b, value.to(zero))
        seen = seen.clamp_min(1)
        out["lam_sensitivity"] = sensitivity / seen
        for name, value in squares.items():
            out[f"grad_{name}"] = (value * self.count / seen).sqrt()
        return out


def correlation(sums: Accumulators) -> dict[str, Tensor]:
    """Correlation captured in nats, log p - log p̄; effective number of λ, exp of the posterior's entropy."""
    out, captured = {}, sums.captured
    posterior = torch.softmax(sums.ratio, 1)
    effective = torch.exp(-torch.xlogy(posterior, posterior).sum(1))  # (B, X)
    if sums.draws:
        out["correlation_consis"] = captured[:, : sums.draws].mean(1)
        out["target_entropy"] = sums.rows["target_entropy"]
    if sums.inputs.x0 is not None:
        out["correlation_data"] = captured[:, -1]
    if sums.configs:
        out["lam_effective"] = effective.mean(1)
    return out


def pairwise_kl(log_p: Tensor, group: LatentGroup = ALONE) -> Tensor:
    """Mean of KL(p(·; λ_i) ‖ p(·; λ_j)) over i ≠ j at rows, log_p `(n, L, S)` -> `(n,)`; 0 for one latent."""
    count = log_p.shape[1] * group.size
    if count == 1:
        return log_p.new_zeros(len(log_p))
    p = log_p.exp()
    own = group.mean((p * log_p).sum(-1).mean(1))
    cross = (group.mean(p.mean(1)) * group.mean(log_p.mean(1))).sum(-1)
    return (own - cross).clamp_min(0) * (count / (count - 1))


def squared_gradients(sums: Accumulators, rows: ProbeRows) -> dict[str, Tensor]:
    """Squared norm of every weighted term's own gradient at the logits of all latents, `(n,)`."""
    weights, variate = sums.inputs.weights, sums.inputs.control_variate
    nothing = TermWeights(**{name: torch.zeros_like(weights.distil) for name in TERMS})
    sparse = sums.symbol_weights(weights, rows.b, sums.at(rows.log_p, rows.symbols)).to(rows.log_p.dtype)
    out, group = {}, sums.inputs.group
    for name in TERMS:
        weight = getattr(weights, name)
        if not weights.present[name]:
            continue
        alone = replace(nothing, **{name: weight})
        mixture, single = weighted_targets(alone, name == "distil", variate, rows.b, rows.teacher, rows.at_u)
        shift = log_target_ratio(mixture, rows.log_mean, sums.inputs.all_latents)
        own = torch.zeros_like(sparse)
        columns = {"consis": slice(0, sums.draws), "corr": slice(sums.draws, None)}.get(name, slice(0, 0))
        own[..., columns] = sparse[..., columns]
        grad = logit_gradient(sums.inputs.all_latents, rows.log_p.clone(), rows.symbols, own, shift, single)
        out[name] = group.mean(grad.square_().sum((1, 2))) * group.size
    return out
