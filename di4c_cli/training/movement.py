"""Does training move the student? Half precision can lose the gradients of whole layers without any error."""

from __future__ import annotations

import torch
from accelerate import Accelerator
from torch import Tensor

from di4c_cli.draw import finest
from di4c_cli.errors import Failure
from di4c_cli.training.ema import local

MIN_STEPS = 10
"""Good steps before single tensors are judged: behind a weight that starts at zero gradients appear later."""
MIN_RATE = 1e-6
"""Learning rate before single tensors are judged: a smaller step may round to nothing."""
CLEAR_GRADIENT = 1e-6
"""A gradient, far above Adam's ε, that must move its tensor."""
MAX_UNUSED_SHARE = 0.1
"""Share of tensors that a network may leave without a gradient, such as embeddings of labels that no data has."""


class MovementCheck:
    """Remembers two sums over every trained tensor and compares them later. `names` are those of `parameters`."""

    def __init__(self, accelerator: Accelerator, names: list[str], parameters: list[torch.nn.Parameter]) -> None:
        self.accelerator, self.names, self.parameters = accelerator, names, parameters
        self._before = self._sums()

    @staticmethod
    def judges(steps: int, rate: float) -> bool:
        """Whether every single tensor should have moved after so many good steps, the fastest at this rate."""
        return steps >= MIN_STEPS and rate >= MIN_RATE

    def check(self, optimizer: torch.optim.Optimizer, precision: str, steps: int, rate: float) -> str:
        """A warning, or none; raises `Failure` if the student stands still. Every process must call it.

        As long as single tensors are not judged, all of them may stand still only if the optimizer saw no clear
        gradient: the first gradients of moment matching are zero.
        """
        moved = (self._sums() != self._before).any(1)
        clear = torch.stack([self._has_gradient(optimizer, p) for p in self.parameters])
        counts = torch.stack([moved, clear], 1).float()
        # with FSDP every process has its own part of a tensor
        moved, clear = (self.accelerator.reduce(counts, "sum") > 0).cpu().unbind(1)
        still = [name for name, flag in zip(self.names, moved.tolist()) if not flag]
        judged = self.judges(steps, rate)
        if not still or not (judged or len(still) == len(self.names)):
            return ""
        text = f"{len(still)} of {len(self.names)} weight tensors have not moved after {steps} good steps"
        text = f"{text} (precision {precision}); the first is {still[0]}."
        stuck = bool((clear & ~moved).any())
        unexplained = judged or not any(optimizer.state.get(parameter) for parameter in self.parameters)
        if stuck or (unexplained and len(still) > MAX_UNUSED_SHARE * len(self.names)):
            hint = "Look at the learning rate and the skipped steps in metrics.jsonl."
            if precision != "fp32":
                hint = "Use --precision fp32 or another version of torch."
            raise Failure(f"The student does not train: {text}", hint)
        return text

    @torch.no_grad()
    def _sums(self) -> Tensor:
        """Sum and norm of every tensor `(n, 2)`; a changed tensor changes at least one of them."""
        rows = []
        for parameter in map(local, self.parameters):
            wide = finest(parameter.device)
            rows.append(torch.stack([parameter.sum(dtype=wide), torch.linalg.vector_norm(parameter, dtype=wide)]))
        return torch.stack(rows)

    def _has_gradient(self, optimizer: torch.optim.Optimizer, parameter: torch.nn.Parameter) -> Tensor:
        """Whether Adam's running mean of the gradient is clearly above zero."""
        mean = optimizer.state.get(parameter, {}).get("exp_avg")
        if mean is None or not local(mean).numel():
            return torch.zeros((), dtype=torch.bool, device=local(parameter).device)
        return local(mean).abs().amax() > CLEAR_GRADIENT
