"""The walk from noise to data: which step is taken when, by whom, and what stays fixed."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

import torch
from torch import Tensor

from di4c_cli.denoiser import Denoiser
from di4c_cli.draw import finest
from di4c_cli.noise import Noise
from di4c_cli.process import Markov, Masked
from di4c_cli.sampler.analytical import analytical_step, last_argmax, noise_of
from di4c_cli.sampler.check import check
from di4c_cli.sampler.confidence import confidence_step
from di4c_cli.sampler.grid import gumbel_scale, reveal_counts, times
from di4c_cli.sampler.predictor import Predictor
from di4c_cli.sampler.published import RowNoise
from di4c_cli.sampler.rows import Draws
from di4c_cli.sampler.settings import Defaults, Settings, resolve
from di4c_cli.sampler.tau import corrector_step, tau_step

Watch = Callable[[int, float, Tensor], None]
"""Called after each step with the steps left, the time reached and x `(B, D)`."""

CORRECTED = 2
"""Corrector steps come before each of the last two denoising steps (tab. pc)."""


@torch.no_grad()
def sample(
    denoiser: Denoiser,
    settings: Settings,
    noise: Noise,
    label: Tensor | None = None,
    given: Tensor | None = None,
    length: int | None = None,
    teacher: Denoiser | None = None,
    watch: Watch | None = None,
) -> Tensor:
    """x_0 `(B, D)` for the samples numbered by `noise`.

    `label` (B,) long, -1 = none. `given` (B, D) long: symbols that must appear, -1 where free. `teacher`
    takes the last `settings.hybrid` steps. Every draw is named by sample and step, so neither the batch nor
    the number of processes matters.
    """
    walk = Walk(denoiser, settings, noise, label, given, length, teacher)
    x = walk.start()
    for i in range(settings.steps, 0, -1):
        x = walk.step(x, i)
        if watch is not None:
            watch(i - 1, walk.times[i - 1], x)
    return x


def sample_many(
    denoiser: Denoiser,
    defaults: Defaults,
    n: int,
    steps: int | None = None,
    seed: int = 0,
    label: int | Sequence[int] | Tensor | None = None,
    batch_size: int | None = None,
    first: int = 0,
    given: Tensor | None = None,
    teacher: Denoiser | None = None,
    watch: Watch | None = None,
    **options: Any,
) -> Tensor:
    """`(n, D)` on the CPU: samples number `first` … of `seed`, `batch_size` at a time.

    `label` is one for all or one per sample, `given` `(D,)` for all or `(n, D)`. `options` are fields of
    `Settings`; what is not named comes from the model's `defaults`.
    """
    length = denoiser.length if given is None else int(given.shape[-1])
    settings = resolve(defaults, length, steps, label is not None, **options)
    labels = None if label is None else torch.as_tensor(label, dtype=torch.long).expand(n)
    fixed = None if given is None else given.expand(n, length)
    size = batch_size or settings.batch_for(length)
    parts = [torch.empty(0, length, dtype=torch.long)]
    for start in range(0, n, size):
        part = slice(start, min(start + size, n))
        noise = Noise(seed, range(first + part.start, first + part.stop), device=denoiser.device)
        own = None if labels is None else labels[part]
        known = None if fixed is None else fixed[part]
        parts.append(sample(denoiser, settings, noise, own, known, length, teacher, watch).cpu())
    return torch.cat(parts)


class Walk:
    """One batch on its way: the fixed facts; x itself is passed from step to step."""

    def __init__(
        self,
        denoiser: Denoiser,
        settings: Settings,
        noise: Noise,
        label: Tensor | None = None,
        given: Tensor | None = None,
        length: int | None = None,
        teacher: Denoiser | None = None,
    ) -> None:
        self.settings, self.process = settings, denoiser.process
        self.length = length or denoiser.length
        device = denoiser.device
        self.noise = Noise(noise.seed, noise.index, noise.stream, device)
        self.label = None if label is None else label.to(device)
        self.given = None if given is None else given.to(device)
        self.times = times(settings.steps, settings.grid, settings.leap)
        check(denoiser, settings, len(noise), self.label, self.given, self.length, teacher)
        self.student = Predictor(denoiser, settings, self.length, self.label)
        self.teacher = None if teacher is None else Predictor(teacher, settings, self.length, self.label)
        if settings.sampler == "confidence":
            assert isinstance(self.process, Masked)
            free = torch.full((len(noise),), self.length, device=device)
            if self.given is not None:
                free = (self.given < 0).sum(1)
            self.counts = reveal_counts(self.process, settings.steps, free)

    def start(self) -> Tensor:
        """x_1 `(B, D)`."""
        x = self.process.prior(self.noise.at("start").uniform("prior", self.length))
        return self.hold(x, 1.0, self.noise.at("start"))

    def time(self, value: float) -> Tensor:
        """`(B,)` of one time."""
        return torch.full(
            (len(self.noise),), value, dtype=finest(self.noise.device), device=self.noise.device
        )

    def hold(self, x: Tensor, t: float, noise: Noise) -> Tensor:
        """Put what is given back in its place, corrupted to time t (a mask process keeps it clear)."""
        if self.given is None:
            return x
        known = self.given.clamp_min(0)
        if t > 0 and isinstance(self.process, Markov):
            known = self.process.corrupt(known, self.time(t), noise.uniform("given", self.length))
        return torch.where(self.given >= 0, known, x)

    def step(self, x: Tensor, i: int) -> Tensor:
        """From t_i to t_{i-1}."""
        noise = self.noise.at("step", i)
        ask = self.teacher if self.teacher is not None and i <= self.settings.hybrid else self.student
        t, s = self.times[i], self.times[i - 1]
        if i <= CORRECTED:
            x = self._correct(ask, x, i)
        if i == 1 and self.settings.last == "argmax":
            x = last_argmax(ask, x, self.time(t), noise)
        elif self.settings.sampler == "confidence":
            x = self._confidence(ask, x, i, noise)
        elif self.settings.sampler == "tau-leaping":
            x = tau_step(ask, x, self.time(t), self.time(s), noise)
        else:
            x = analytical_step(ask, x, self.time(t), self.time(s), noise)
        return self.hold(x, s, noise)

    def _correct(self, ask: Predictor, x: Tensor, i: int) -> Tensor:
        """Corrector steps at t_i, each with a network call and λ of its own."""
        for k in range(self.settings.corrector):
            noise = self.noise.at("step", i, "corrector", k)
            x = corrector_step(ask, x, self.time(self.times[i]), self.settings.corrector_step, noise)
            x = self.hold(x, self.times[i], noise)
        return x

    def _confidence(self, ask: Predictor, x: Tensor, i: int, noise: Noise) -> Tensor:
        count = self.counts[self.settings.steps - i]
        active = (count > 0).nonzero().squeeze(1)
        if len(active) == 0:
            return x
        t = self.time(self.times[i])
        prediction = ask(x, t, noise, active, self.process.unknown(x[active]))
        value = noise.uniform("value", self.length)[active]
        gumbel = noise.gumbel("order", self.length)[active]
        scale = gumbel_scale(t, self.settings.steps)[active]
        gumbel32 = RowNoise(noise_of(noise, active.tolist()), self.length)
        how = Draws(ask.head_rows, ask.tile == 1, gumbel32 if self.settings.dtype == "float32" else None)
        x = x.clone()
        x[active] = confidence_step(prediction, x[active], count[active], scale, value, gumbel, how)
        return x
