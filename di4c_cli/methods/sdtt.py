"""SDTT, self-distillation through time: several steps of a masked teacher become one step of the student.

The teacher goes from x_t to x_{t-nΔ} in n steps of length Δ. The target of a position is the teacher's prediction in
the step that reveals it, or in the last step. The student, a product model of the teacher's architecture, minimises

    1/|unknown| Σ_d KL(target^d ‖ p^{θ,d}(·|x_t))        over the unknown positions of x_t.

It is the next round's teacher, with steps n times as long (Deschenaux and Gulcehre, arXiv 2410.21035).
"""

from __future__ import annotations

import torch
from torch import Tensor

from di4c_cli import memory
from di4c_cli.denoiser import Denoiser, Prediction
from di4c_cli.errors import UserError
from di4c_cli.methods.base import Loss, Method, MethodSetup
from di4c_cli.methods.di4c_times import SampledTimes
from di4c_cli.methods.kernels import RowTerm, sum_over_rows
from di4c_cli.methods.noised_batch import TrainingSamples, corrupt_data
from di4c_cli.methods.sdtt_config import SDTTConfig
from di4c_cli.methods.teacher_step import analytical_teacher_step
from di4c_cli.methods.times import sample_time
from di4c_cli.noise import Noise
from di4c_cli.process import Masked


class Targets:
    """The teacher's predictions along its steps, and the step `(B, D)` whose prediction is a position's target."""

    def __init__(self, predictions: list[Prediction], number: Tensor) -> None:
        self.predictions, self.number = predictions, number

    def log_probs(self, b: Tensor, d: Tensor) -> Tensor:
        """log of the targets `(n, S)` at unknown positions of x_t."""
        number = self.number[b, d]
        first = self.predictions[0]
        out = torch.empty(len(b), first.process.symbols, device=b.device, dtype=torch.float32)
        for k, prediction in enumerate(self.predictions):
            here = (number == k).nonzero().squeeze(1)
            log_p = prediction.log_probs(b[here], d[here])
            out = out.to(log_p.dtype).index_copy_(0, here, log_p)
        return out


@torch.no_grad()
def teacher_targets(
    teacher: Denoiser, x_t: Tensor, t: Tensor, step: float, count: int, label: Tensor | None, noise: Noise, budget: int
) -> Targets:
    """`count` steps of length `step` from x_t `(B, D)`; the symbols of the last step are not needed."""
    predictions, x = [], x_t
    number = torch.full_like(x_t, count - 1)
    for k in range(count):
        now, then = ((t - i * step).clamp_min(0) for i in (k, k + 1))
        prediction = teacher.predict(x, now, label)
        predictions.append(prediction)
        if k < count - 1:
            uniform = noise.uniform(f"step/{k}", 1, x.shape[1], 2)
            times = SampledTimes(now, then, now - then, then)
            after = analytical_teacher_step(prediction, 1, x, times, uniform, budget).squeeze(1)
            number[teacher.process.unknown(x) & ~teacher.process.unknown(after)] = k
            x = after
    return Targets(predictions, number)


def kl_rows(targets: Targets) -> RowTerm:
    """KL(target ‖ p) of each row, with its gradient p - target at the logits."""

    def term(logits: Tensor, b: Tensor, d: Tensor) -> tuple[Tensor, Tensor]:
        log_target, log_p = targets.log_probs(b, d), torch.log_softmax(logits, -1)
        target = log_target.exp()
        each = (target * log_target.sub_(log_p)).sum(-1)
        return each, log_p.exp_().sub_(target)

    return term


class SDTT(Method):
    """KL from the teacher's several steps to the student's one."""

    config: SDTTConfig

    def __init__(
        self, config: SDTTConfig, student: Denoiser, teacher: Denoiser | None = None, setup: MethodSetup | None = None
    ) -> None:
        super().__init__(config, student, teacher, setup)
        if not isinstance(student.process, Masked):
            raise UserError("SDTT needs a teacher with a masked process.", "Use --method moment_matching.")
        if student.latent is not None:
            raise UserError("SDTT needs a teacher without λ.", "Name the first teacher with --teacher.")

    def loss(self, batch: TrainingSamples, noise: Noise, progress: float = 1.0) -> Loss:
        """The loss of one batch; the teacher's step grows with the round."""
        c, process = self.config, self.student.process
        budget, _ = c.loss_memory(memory.gpu_memory(self.student.device))
        t = sample_time(c.time, noise)
        x_t, _ = corrupt_data(process, batch, t, noise)
        step = c.step * c.teacher_steps ** (self.setup.round_number - 1)
        targets = teacher_targets(self.teacher, x_t, t, step, c.teacher_steps, batch.label, noise, budget)
        prediction = self.student.predict(x_t, t, batch.label, None, self.setup.dropout)
        unknown = process.unknown(x_t)
        weight = 1 / unknown.sum(1).clamp_min(1).to(t)
        total, each = sum_over_rows(prediction, unknown, weight, kl_rows(targets), budget)
        kl = each * weight.to(each)
        return Loss(total, {"kl": kl, "total": kl}, {"kl": unknown.any(1)})
