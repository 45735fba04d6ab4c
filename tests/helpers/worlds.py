"""Small models of every world in float64, and one batch of each as the objective's core sees it."""

from __future__ import annotations

from dataclasses import dataclass

import torch
from torch import Tensor

from di4c_cli.denoiser import Denoiser, Latent, Prediction
from di4c_cli.network import build
from di4c_cli.objective.problem import Problem, Weights
from di4c_cli.process import Gaussian, Masked, Process

BATCH, LATENTS = 3, 4
NETWORKS: dict[str, dict[str, object]] = {
    "dit": {"type": "dit", "symbols": 11, "length": 6, "width": 16, "depth": 1, "heads": 2, "cond_dim": 8},
    "maskgit": {
        "type": "maskgit", "symbols": 7, "length": 5, "width": 16, "depth": 1, "heads": 2, "mlp": 24, "labels": 3,
    },
    "unet": {
        "type": "unet", "symbols": 9, "shape": [1, 4, 4], "channels": 32, "multipliers": [1], "blocks": 1,
        "attention": [], "time_dim": 16,
    },
}  # fmt: skip


def scatter(module: torch.nn.Module, seed: int, size: float) -> None:
    """Random weights everywhere: fresh networks leave some at 0, where gradients hide."""
    generator = torch.Generator().manual_seed(seed)
    with torch.no_grad():
        for p in module.parameters():
            p.add_(size * torch.randn(p.shape, generator=generator, dtype=p.dtype))


def denoiser(kind: str, mixture: bool, seed: int = 0, dtype: torch.dtype = torch.float64) -> Denoiser:
    config = dict(NETWORKS[kind])
    process: Process = Gaussian(9) if kind == "unet" else Masked(int(str(config["symbols"])))
    if mixture:
        config["latent"] = {"inject": "film"}
    with torch.random.fork_rng():
        torch.manual_seed(seed)
        network = build(config).to(dtype)
    scatter(network, seed, 0.1 if kind == "unet" else 0.3)
    return Denoiser(network, process, Latent() if mixture else None, labels=3 if kind == "maskgit" else None)


@dataclass
class Case:
    problem: Problem
    student: Denoiser
    x: Tensor
    t: Tensor
    lam: Tensor

    def predict(self) -> Prediction:
        """The student at t, with a graph."""
        return self.student.predict(self.x, self.t, lam=self.lam)


def case(
    kind: str,
    variate: str = "marginal",
    mixture_teacher: bool = False,
    weights: Weights | None = None,
    seed: int = 0,
    latents: int = LATENTS,
    **options: object,
) -> Case:
    """x_t with known and unknown positions, x_u with some more known, fixed consistency samples."""
    g = torch.Generator().manual_seed(seed)
    student, teacher = denoiser(kind, True, 1), denoiser(kind, mixture_teacher, 2)
    process, length = student.process, student.length
    x0 = torch.randint(0, process.symbols, (BATCH, length), generator=g)
    t, rand = torch.rand(BATCH, generator=g).double(), lambda *shape: torch.rand(*shape, generator=g).double()
    x_t = process.corrupt(x0, t.clamp(0.3, 0.9), rand(BATCH, length))
    many_t, many_x = t.repeat_interleave(latents), x_t.repeat_interleave(latents, 0)
    x_u = torch.where(rand(BATCH * latents, length) < 0.4, x0.repeat_interleave(latents, 0), many_x)
    each = latents if mixture_teacher else 1
    with torch.no_grad():
        teach = teacher.predict(
            x_t.repeat_interleave(each, 0),
            t.repeat_interleave(each),
            lam=rand(BATCH * each) if mixture_teacher else None,
        )
        later = student.predict(x_u, many_t / 2, lam=rand(BATCH * latents))
    problem = Problem(
        x_t=x_t,
        latents=latents,
        weights=weights or Weights(*[0.5 + rand(BATCH) for _ in range(4)]),
        control_variate=variate,
        teacher=teach,
        teacher_latents=each,
        student_u=later,
        place=torch.arange(BATCH),
        uniform=rand(BATCH, latents, length),
        x0=x0,
        **options,  # type: ignore[arg-type]
    )
    return Case(problem, student, many_x, many_t, rand(BATCH * latents))
