"""The walk from noise to data: which step is taken when, by whom, and what stays fixed."""

from __future__ import annotations

from collections.abc import Callable

import torch
from torch import Tensor

from di4c_cli.denoiser import Denoiser
from di4c_cli.errors import UserError
from di4c_cli.noise import Noise
from di4c_cli.process import Markov, Masked
from di4c_cli.sampler.analytical import analytical_step, last_argmax, row_noise
from di4c_cli.sampler.confidence import confidence_step
from di4c_cli.sampler.grid import gumbel_scale, reveal_counts, times
from di4c_cli.sampler.predictor import Predictor
from di4c_cli.sampler.settings import Settings
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
        self.times = times(settings.steps, settings.grid)
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
        return torch.full((len(self.noise),), value, dtype=torch.float64, device=self.noise.device)

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
        prediction = ask(x, t, noise, active)
        value = noise.uniform("value", self.length)[active]
        gumbel = noise.gumbel("order", self.length)[active]
        scale = gumbel_scale(t, self.settings.steps)[active]
        published = row_noise(ask, noise, self.length, active)
        x = x.clone()
        x[active] = confidence_step(
            prediction, x[active], count[active], scale, value, gumbel, published, ask.head_rows
        )
        return x


def check(
    denoiser: Denoiser,
    settings: Settings,
    batch: int,
    label: Tensor | None,
    given: Tensor | None,
    length: int,
    teacher: Denoiser | None,
) -> None:
    """Refuse what this model cannot do, in one sentence."""
    masked = isinstance(denoiser.process, Masked)
    if settings.sampler == "confidence" and not masked:
        raise UserError("The confidence sampler needs a masked process.", "Use --sampler analytical.")
    if settings.sampler == "tau-leaping" and masked:
        raise UserError("τ-leaping needs a Gaussian or uniform process.", "Use --sampler analytical.")
    if settings.corrector and masked:
        raise UserError("Corrector steps need a Gaussian or uniform process.", "Use --corrector 0.")
    if settings.guidance and not denoiser.labels:
        raise UserError("Guidance needs a model with class labels.", "Leave --guidance out.")
    if settings.guidance and label is None:
        raise UserError("Guidance needs a class to guide to.", "Add --label, or leave --guidance out.")
    if label is not None:
        if not denoiser.labels:
            raise UserError("This model has no class labels.", "Leave --label out.")
        if int(label.min()) < -1 or int(label.max()) >= denoiser.labels:
            raise UserError(
                f"Label {int(label.max())} is out of range.", f"Labels go from 0 to {denoiser.labels - 1}."
            )
    if given is not None:
        if given.shape != (batch, length):
            raise UserError(f"Given symbols have shape {tuple(given.shape)}, not {(batch, length)}.")
        if int(given.max()) >= denoiser.symbols or int(given.min()) < -1:
            raise UserError(f"A given symbol is outside 0 to {denoiser.symbols - 1}.", "Check its codes.")
    if settings.hybrid:
        if teacher is None:
            raise UserError("A hybrid needs the teacher.", "Name it with --teacher, or use --hybrid 0.")
        if teacher.process.config != denoiser.process.config:
            raise UserError("Teacher and student have different processes.", "Use its own teacher.")
