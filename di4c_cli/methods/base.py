"""The interface of a training method: a module whose forward pass is the whole loss."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import Any

import torch
from torch import Tensor, nn

from di4c_cli.denoiser import Denoiser
from di4c_cli.methods.diagnostics import CollapseDetector
from di4c_cli.methods.kernels.head import leaves
from di4c_cli.methods.latent_group import ALONE
from di4c_cli.methods.noised_batch import TrainingSamples
from di4c_cli.noise import Noise

LossTuple = tuple[Tensor, dict[str, Tensor], dict[str, Tensor], dict[str, Tensor]]
"""`Loss` as a tuple, which DDP and FSDP can pass through: total, terms, active, diagnostics."""


@dataclass
class Loss:
    """`total`: mean over the samples, with a graph. The other fields are detached tensors `(B,)` by name.

    `terms` are unweighted, except `total`, the weighted sum of each sample. `active` says which samples a term or a
    diagnostic figure covers; a missing name covers all.
    """

    total: Tensor
    terms: dict[str, Tensor] = field(default_factory=dict)
    active: dict[str, Tensor] = field(default_factory=dict)
    diagnostics: dict[str, Tensor] = field(default_factory=dict)


@dataclass(frozen=True)
class MethodSetup:
    """What a method must know of the run around it."""

    seed: int = 0
    round_number: int = 1
    dropout: bool = False
    dropout_at_u: bool = False
    data_free: bool = False
    """The recipe's data is `teacher`: x_t comes from the teacher's trajectory."""


@dataclass(frozen=True)
class TrainedPart:
    """Parameters that one update trains; `optimizer` overrides keys of the recipe's `training.optimizer`."""

    parameters: list[nn.Parameter]
    optimizer: dict[str, Any] = field(default_factory=dict)


class Method(nn.Module):
    """A training method. Its submodules are trained: the student, and whatever else the method adds.

    The teacher is not a submodule, so it is neither trained nor synchronised. It is None for a method whose config has
    `needs_teacher = False`, and then takes no memory on the device.
    """

    def __init__(
        self, config: Any, student: Denoiser, teacher: Denoiser | None = None, setup: MethodSetup | None = None
    ) -> None:
        super().__init__()
        self.config, self.setup = config, setup or MethodSetup()
        self.student = student
        self._frozen = (teacher,)  # a tuple hides the teacher from torch's module tree
        self.latent_group = ALONE
        """The processes among which the latents of this method's samples are divided."""
        self.touch_all_parameters = False
        """DDP and FSDP wait for a gradient of every parameter; this gives the unused ones a zero."""

    @property
    def teacher(self) -> Denoiser:
        """The frozen teacher."""
        (teacher,) = self._frozen
        assert teacher is not None, "this method was built without a teacher"
        return teacher

    def loss(self, batch: TrainingSamples, noise: Noise, progress: float = 1.0) -> Loss:
        """The loss of one batch with draws from `noise`; `progress` in [0, 1] is the completed share of the round."""
        raise NotImplementedError

    def part_loss(self, part: int, batch: TrainingSamples, noise: Noise, progress: float) -> Loss:
        """The loss whose gradient updates part number `part`; a method with one part needs only `loss`."""
        return self.loss(batch, noise, progress)

    def parts(self) -> list[TrainedPart]:
        """The parameters in the groups that are updated separately; part 0 contains the student."""
        return [TrainedPart(list(self.parameters()))]

    def updates(self, step: int) -> Sequence[int]:
        """The parts that iteration `step` updates, in order."""
        return (0,)

    def collapse_detector(self) -> CollapseDetector:
        """Checks that run on the metrics of every step and warn when λ loses its influence."""
        return CollapseDetector()

    def forward(self, batch: TrainingSamples, noise: Noise, progress: float = 1.0, part: int = 0) -> LossTuple:
        """The call that Accelerate wraps."""
        loss = self.part_loss(part, batch, noise, progress)
        total = loss.total
        # a batch without unknown positions has no graph
        if self.touch_all_parameters or not total.requires_grad:
            used = {id(leaf) for leaf in leaves(total)}
            unused = [p for p in self.parameters() if p.requires_grad and id(p) not in used]
            total = _ZeroGradients.apply(total, *unused) if unused else total  # type: ignore[no-untyped-call]
        return total, loss.terms, loss.active, loss.diagnostics


class _ZeroGradients(torch.autograd.Function):
    """The loss itself; its backward pass gives the other tensors a gradient of zero."""

    @staticmethod
    def forward(ctx: Any, total: Tensor, *unused: Tensor) -> Tensor:
        ctx.unused = unused
        return total.view_as(total)

    @staticmethod
    def backward(ctx: Any, *grads: Tensor) -> Any:
        return grads[0], *(torch.zeros_like(tensor) for tensor in ctx.unused)


def repeat(x: Tensor, count: int) -> Tensor:
    """Each sample `count` times in a row: `(B, ...)` -> `(B·count, ...)`."""
    return x.repeat_interleave(count, 0)


def repeat_label(label: Tensor | None, count: int) -> Tensor | None:
    """`repeat` for labels, which may be None."""
    return None if label is None else repeat(label, count)


def flat_latents(lam: Tensor | None) -> Tensor | None:
    """λ `(B, L)` or `(B, L, size)` with the latents in one row: `(B·L)` or `(B·L, size)`."""
    return None if lam is None else lam.flatten(0, 1)
