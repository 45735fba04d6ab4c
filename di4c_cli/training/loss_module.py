"""The one module handed to Accelerate: its forward is the whole loss, so DDP and FSDP see every parameter."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import torch
from torch import Tensor, nn

from di4c_cli.data.stream import Batch
from di4c_cli.denoiser import Denoiser
from di4c_cli.noise import Noise
from di4c_cli.recipe import Recipe

Objective = Callable[..., Any]
"""`(student, teacher, batch, noise, dropout, progress=) -> Loss` with `total`, `terms`, `active` and `health`."""

Result = tuple[Tensor, dict[str, Tensor], dict[str, Tensor], dict[str, Tensor]]
"""Loss with a graph; then terms, which samples they cover, and health figures, each `(B,)` by name."""


class LossModule(nn.Module):
    """Student and objective; the teacher, outside the module tree, is neither trained nor synchronised."""

    def __init__(
        self,
        student: Denoiser,
        teacher: Denoiser,
        objective: Objective,
        dropout: bool,
        posterior: nn.Module | None = None,
    ) -> None:
        super().__init__()
        self.student = student
        self.posterior = posterior
        self._outside = (teacher, objective)  # in a tuple, torch does not see the teacher as a submodule
        self.dropout = dropout
        self.touch_all = False

    def forward(self, batch: Batch, noise: Noise, progress: float = 1.0) -> Result:
        teacher, objective = self._outside
        more = {} if self.posterior is None else {"posterior": self.posterior}
        loss = objective(self.student, teacher, batch, noise, self.dropout, progress=progress, **more)
        total = loss.total
        if self.touch_all or not total.requires_grad:
            # a batch without a single unknown position has no graph, and DDP waits for all parameters
            total = total + sum(p.flatten()[0] * 0 for p in self.parameters() if p.requires_grad)
        return total, loss.terms, loss.active, loss.health


def make_objective(values: dict[str, Any]) -> Objective:
    """The Di4C objective from the recipe's section of that name."""
    from di4c_cli.objective.loss import Objective as Di4c
    from di4c_cli.objective.settings import Settings

    return Di4c(Settings.from_dict(values))


def make_posterior(recipe: Recipe, student: Denoiser, round_number: int) -> nn.Module | None:
    """The recipe's amortised posterior for this student, if it has one."""
    from di4c_cli.objective.posterior import Posterior

    settings = recipe.objective.posterior
    if settings is None:
        return None
    return Posterior(student, settings.width, f"{recipe.seed}:posterior:{round_number}").to(student.dtype)


def seed_dropout(seed: int, round_number: int, step: int, rank: int) -> None:
    """Dropout alone uses torch's global generator: set each step, so that a resumed run draws the same."""
    from di4c_cli.noise import sample_seeds

    (value,) = sample_seeds(f"{seed}:dropout:{round_number}:{rank}", [step])
    torch.manual_seed(value)
