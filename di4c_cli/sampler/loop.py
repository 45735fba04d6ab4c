"""The sampling loop: x_1 from the prior, one reverse step after the other, x_0 at the end."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from contextlib import nullcontext
from dataclasses import replace

import torch
from torch import Tensor

from di4c_cli.denoiser import Denoiser
from di4c_cli.draw import finest
from di4c_cli.errors import UserError
from di4c_cli.noise import Noise
from di4c_cli.process import Markov, Masked, Process
from di4c_cli.sampler.confidence import maskgit_step, reveal_counts
from di4c_cli.sampler.plan import SamplingPlan
from di4c_cli.sampler.predictor import Predictor
from di4c_cli.sampler.steps import analytical_step, argmax_step
from di4c_cli.sampler.tau import corrector_step, tau_step

OnStep = Callable[[int, float, Tensor], None]
"""Called after each step with the steps left, the time reached and x `(B, D)`."""

CORRECTED_STEPS = 2
"""Corrector steps come before each of the last two denoising steps (tab. pc)."""


@torch.no_grad()
def sample_batch(
    denoiser: Denoiser,
    plan: SamplingPlan,
    noise: Noise,
    label: Tensor | None = None,
    given: Tensor | None = None,
    teacher: Denoiser | None = None,
    on_step: OnStep | None = None,
) -> Tensor:
    """x_0 `(B, D)` for the samples numbered by `noise`; the teacher makes the last `plan.hybrid` steps.

    `label` (B,) long, -1 = none. `given` (B, D) long: symbols that must appear, -1 where free. Every draw is named
    by sample and step, so samples depend neither on the batch nor on the number of processes.
    """
    plan.check_inputs(denoiser, label, given, teacher)
    noise = Noise(noise.seed, noise.index, noise.stream, denoiser.device)
    label, given = (None if a is None else a.to(denoiser.device) for a in (label, given))
    process = denoiser.process
    length = denoiser.length if given is None else given.shape[1]
    start = noise.at("start")
    x = hold(given, process.prior(start.uniform("prior", length)), process, 1.0, start)
    free = process.unknown(x)
    blocks = plan.blocks(free.sum(1))
    times, steps = plan.times(blocks), plan.steps // blocks
    student = Predictor(denoiser, replace(plan, steps=steps), label)
    helper = student if teacher is None else Predictor(teacher, student.plan, label)
    # draws are in float64, which autocast leaves alone
    half = torch.autocast(denoiser.device.type, torch.bfloat16) if plan.precision == "bf16" else nullcontext()
    with half:
        for step in range(plan.steps, 0, -1):
            left, i = (step - 1) // steps, (step - 1) % steps + 1  # blocks after this one; from t_i to t_{i-1}
            if i == steps:
                block = None if plan.block is None else free & ((free.cumsum(1) - 1) // plan.block == blocks - left - 1)
                counts = None
                if plan.sampler == "confidence" and isinstance(process, Masked):
                    counts = reveal_counts(process, steps, (free if block is None else block).sum(1))
            own = noise.at("step", step)
            predictor = (helper if step <= plan.hybrid else student).at(times[i], left, blocks)
            t, s = (all_at(value, noise) for value in (times[i], times[i - 1]))
            for k in range(plan.corrector if step <= CORRECTED_STEPS else 0):
                correction = noise.at("step", step, "corrector", k)
                x = corrector_step(predictor, x, t, plan.corrector_step, correction)
                x = hold(given, x, process, times[i], correction)
            if i == 1 and plan.last == "argmax":
                x = argmax_step(predictor, x, t, own, block)
            elif counts is not None:
                x = maskgit_step(predictor, x, t, counts[steps - i], own, block)
            elif plan.sampler == "tau-leaping":
                x = tau_step(predictor, x, t, s, own)
            else:
                x = analytical_step(predictor, x, t, s, own, block)
            x = hold(given, x, process, times[i - 1], own)
            if on_step is not None:
                on_step(step - 1, (left + times[i - 1]) / blocks, x)
    return x


def all_at(time: float, noise: Noise) -> Tensor:
    """One time `(B,)` for every sample."""
    return torch.full((1,), time, dtype=finest(noise.device), device=noise.device).expand(len(noise))


def hold(given: Tensor | None, x: Tensor, process: Process, t: float, noise: Noise) -> Tensor:
    """x `(B, D)` with the given symbols in their places, corrupted to time t (a masked process keeps them clear)."""
    if given is None:
        return x
    known = given.clamp_min(0)
    if t > 0 and isinstance(process, Markov):
        known = process.corrupt(known, all_at(t, noise), noise.uniform("given", x.shape[1]))
    return torch.where(given >= 0, known, x)


def sample_many(
    denoiser: Denoiser,
    plan: SamplingPlan,
    n: int,
    seed: int = 0,
    label: int | Sequence[int] | Tensor | None = None,
    batch_size: int | None = None,
    first: int = 0,
    given: Tensor | None = None,
    teacher: Denoiser | None = None,
    on_step: OnStep | None = None,
    advance: Callable[[int], None] = lambda count: None,
    numbers: Sequence[int] | None = None,
) -> Tensor:
    """`(n, D)` on the CPU: samples number `first` …, or those of `numbers`, of `seed`, `batch_size` at a time.

    `label` is one for all or one per sample, `given` `(D,)` for all or `(n, D)`. `advance` is called with the size of
    each finished batch.
    """
    labels = None if label is None else torch.as_tensor(label, dtype=torch.long)
    counts = (1 if labels is None else labels.numel(), 1 if given is None or given.dim() < 2 else len(given))
    for found, what in zip(counts, ("labels", "rows of given symbols")):
        if found not in (1, n):
            raise UserError(f"{found} {what} do not fit {n} samples.", "Give one, or one per sample.")
    labels = None if labels is None else labels.expand(n)
    length = denoiser.length if given is None else int(given.shape[-1])
    rows = None if given is None else given.expand(n, length)
    if rows is not None and plan.block is not None:
        plan.blocks((rows < 0).sum(1))  # whether they fit together must not depend on the batch size
    size = batch_size or plan.batch_size(length)
    parts = [torch.empty(0, length, dtype=torch.long)]
    numbers = range(first, first + n) if numbers is None else numbers
    for start in range(0, n, size):
        part = slice(start, min(start + size, n))
        noise = Noise(seed, numbers[part], device=denoiser.device)
        own_label, own_given = (None if a is None else a[part] for a in (labels, rows))
        parts.append(sample_batch(denoiser, plan, noise, own_label, own_given, teacher, on_step).cpu())
        advance(len(noise))
    return torch.cat(parts)
