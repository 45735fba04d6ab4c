"""The Di4C loss as a textbook would write it, on `(B, L, D, S)` tensors: yardstick and oracle of ours.

With T, U, K the log-probabilities of the student at t, of the student at u and of the teacher, the terms
are written down one by one, at every position, and recorded by torch; nothing is chunked, shared or left
out.
"""

from __future__ import annotations

import math
from typing import Any

import torch
from torch import Tensor

from di4c_cli.denoiser import Prediction
from di4c_cli.objective.problem import Problem

NEVER = -1e6
"""log 0 as the published code writes it: finite, so that 0 · log 0 is 0."""


def dense_log_probs(prediction: Prediction) -> Tensor:
    """log p(x0^d | xt) at all positions, `(N, D, S)`; known positions are certain."""
    number, length = prediction.x_t.shape
    d = torch.arange(length, device=prediction.x_t.device).repeat(number)
    network: Any = prediction.network
    logits: Tensor = network.head(prediction.hidden.flatten(0, 1), d)
    logits = logits.to(torch.promote_types(logits.dtype, torch.float32)).view(number, length, -1)
    log_p = logits - torch.logsumexp(logits, -1, keepdim=True)
    known = ~prediction.process.unknown(prediction.x_t)
    if not bool(known.any()):
        return log_p
    symbol = prediction.x_t.clamp_max(log_p.shape[-1] - 1)[..., None]
    certain = torch.full_like(log_p, NEVER).scatter_(2, symbol, 0.0)
    return torch.where(known[..., None], certain, log_p)


def log_mean_exp(x: Tensor, dim: int) -> Tensor:
    """log of the mean of exp(x) along `dim`."""
    return torch.logsumexp(x, dim) - math.log(x.shape[dim])


def dense_terms(problem: Problem, student: Prediction) -> dict[str, Tensor]:
    """Every term of every sample, `(B,)` each; every sample must have its x_u (`place` in order)."""
    p, count = problem, problem.latents
    log_t = dense_log_probs(student).unflatten(0, (-1, count))  # (B, L, D, S)
    mean_t = log_mean_exp(log_t, 1)
    terms = {}
    if p.teacher is not None:
        with torch.no_grad():
            log_k = log_mean_exp(dense_log_probs(p.teacher).unflatten(0, (-1, p.teacher_latents)), 1)
        terms["marginal"] = (log_k.exp() * (log_k - mean_t)).sum((1, 2))
        terms["distil"] = (log_k.exp()[:, None] * (log_k[:, None] - log_t)).sum((1, 2, 3)) / count
    if p.student_u is not None:
        with torch.no_grad():
            log_u = dense_log_probs(p.student_u).unflatten(0, (-1, count))
            x = draw(log_u, p)
        terms |= consistency(p.control_variate, log_t, mean_t, log_u, x)
    if p.x0 is not None:
        joint, product, _ = likelihoods(log_t, mean_t, p.x0[:, None])
        terms["corr"] = (-joint if p.control_variate == "none" else product - joint).squeeze(1)
    return terms


def likelihoods(log_t: Tensor, mean_t: Tensor, x: Tensor) -> tuple[Tensor, Tensor, Tensor]:
    """log p, log p̄ and log p(·; λ_i) of configurations x `(B, M, D)`: `(B, M)`, `(B, M)`, `(B, L, M)`."""
    index = x.clamp_max(log_t.shape[-1] - 1).transpose(1, 2)  # (B, D, M)
    single = log_t.gather(3, index[:, None].expand(-1, log_t.shape[1], -1, -1)).sum(2)
    product = mean_t.gather(2, index).sum(1)
    return log_mean_exp(single, 1), product, single


def consistency(variate: str, log_t: Tensor, mean_t: Tensor, log_u: Tensor, x: Tensor) -> dict[str, Tensor]:
    """Both parts of the consistency term (eq. monte-carlo, consis-cv; E.2 for the convex bound)."""
    joint, product, single = likelihoods(log_t, mean_t, x)
    law, mean_u = log_u.exp().mean(1), log_mean_exp(log_u, 1)
    if variate == "none":
        first, second = -joint, torch.zeros_like(joint[:, 0])
    elif variate == "convex":
        first = single.mean(1) - joint
        second = (law[:, None] * (mean_u[:, None] - log_t)).sum((1, 2, 3)) / log_t.shape[1]
    else:
        first, second = product - joint, (law * (mean_u - mean_t)).sum((1, 2))
    return {"consis_corr": first.mean(1), "consis_indep": second, "consis": first.mean(1) + second}


def draw(log_u: Tensor, problem: Problem) -> Tensor:
    """x_j `(B, M, D)`, one from each latent: given, by the inverse CDF of given uniforms, or as published."""
    if problem.samples is not None:
        return problem.samples
    if problem.uniform is None:
        noise = 1e-10 - (torch.rand_like(log_u) + 1e-10).log()
        return (log_u.exp() / noise).argmax(-1)
    cumulative = log_u.exp().cumsum(-1)
    goal = problem.uniform.to(cumulative)[..., None] * cumulative[..., -1:]
    return torch.searchsorted(cumulative, goal).squeeze(-1).clamp_max(log_u.shape[-1] - 1)


def dense_loss(problem: Problem, student: Prediction) -> Tensor:
    """Mean over samples of Σ weight·term."""
    terms = dense_terms(problem, student)
    total = torch.zeros_like(problem.weights.distil)
    for name in ("distil", "consis", "corr", "marginal"):
        if name in terms:
            total = total + getattr(problem.weights, name) * terms[name]
    return total.mean()
