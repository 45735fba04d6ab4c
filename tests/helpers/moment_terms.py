"""The two terms of moment matching for one position in plain torch: log_r, log_aux, log_teacher `(n, S)` -> `(n,)`."""

from __future__ import annotations

import torch
from torch import Tensor


def student_term(log_r: Tensor, log_aux: Tensor, log_teacher: Tensor) -> Tensor:
    """Σ_c r(c) (log p^φ(c|x_s) - log p^ψ(c|x_s))."""
    return (log_r.exp() * (log_aux - log_teacher)).sum(-1)


def auxiliary_term(log_r: Tensor, log_aux: Tensor, log_teacher: Tensor, teacher_weight: float) -> Tensor:
    """-Σ_c (r(c) + w p^ψ(c|x_s)) log p^φ(c|x_s)."""
    return -((log_r.exp() + teacher_weight * log_teacher.exp()) * log_aux).sum(-1)


def log_given(logits: Tensor, evidence: Tensor | None) -> Tensor:
    """log r from the student's logits and log q(x_s|x_t, x0 = c), `(n, S)` each; None adds nothing."""
    return torch.log_softmax(logits if evidence is None else logits + evidence.to(logits), -1)
