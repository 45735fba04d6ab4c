"""Small denoisers of every network in float64, and a batch of loss inputs for each."""

from __future__ import annotations

from dataclasses import dataclass

import torch
from torch import Tensor

from di4c_cli.denoiser import Denoiser, Prediction
from di4c_cli.latent.prior import LatentPrior
from di4c_cli.methods.kernels import LossInputs, TermWeights
from di4c_cli.network import build
from di4c_cli.process import Gaussian, Masked, Process, Uniform

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
    "uniform": {"type": "dit", "symbols": 5, "length": 4, "width": 16, "depth": 1, "heads": 2, "cond_dim": 8},
}  # fmt: skip
"""Networks by kind; `dit` and `maskgit` denoise a masked process, `unet` a Gaussian and `uniform` a uniform one."""


def scatter(module: torch.nn.Module, seed: int, size: float) -> None:
    """Random weights everywhere: fresh networks leave some at 0, where gradients hide."""
    generator = torch.Generator().manual_seed(seed)
    with torch.no_grad():
        for p in module.parameters():
            p.add_(size * torch.randn(p.shape, generator=generator, dtype=p.dtype))


def process_of(kind: str) -> Process:
    symbols = int(str(NETWORKS[kind]["symbols"]))
    return {"unet": Gaussian, "uniform": Uniform}.get(kind, Masked)(symbols)


def denoiser(kind: str, mixture: bool, seed: int = 0, dtype: torch.dtype = torch.float64) -> Denoiser:
    config = dict(NETWORKS[kind])
    if mixture:
        config["latent"] = {"inject": "film"}
    with torch.random.fork_rng():
        torch.manual_seed(seed)
        network = build(config).to(dtype)
    scatter(network, seed, 0.1 if kind == "unet" else 0.3)
    return Denoiser(
        network, process_of(kind), LatentPrior() if mixture else None, labels=3 if kind == "maskgit" else None
    )


def normal_denoiser(
    kind: str, dim: int, dtype: torch.dtype = torch.float64, inject: str = "film", prior_width: int | None = None
) -> Denoiser:
    """A student whose λ has `dim` normal numbers (at every position with `local`), as the encoder needs it."""
    latent: dict[str, object] = {"inject": inject, "dim": dim, "distribution": "normal", "features": "raw"}
    if prior_width is not None:
        latent |= {"prior": "learned", "prior_width": prior_width}
    with torch.random.fork_rng():
        torch.manual_seed(0)
        network = build({**NETWORKS[kind], "latent": latent}).to(dtype)
    scatter(network, 0, 0.2)
    places = int(str(NETWORKS[kind]["length"])) if inject == "local" else 1
    prior = LatentPrior(dim, "normal", places)
    return Denoiser(network, process_of(kind), prior, labels=3 if kind == "maskgit" else None)


@dataclass
class KernelCase:
    """Loss inputs of one batch and the arguments of the student at t."""

    inputs: LossInputs
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
    weights: TermWeights | None = None,
    seed: int = 0,
    latents: int = LATENTS,
    **options: object,
) -> KernelCase:
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
    inputs = LossInputs(
        x_t=x_t,
        latents=latents,
        weights=weights or TermWeights(*[0.5 + rand(BATCH) for _ in range(4)]),
        control_variate=variate,
        teacher=teach,
        teacher_latents=each,
        student_u=later,
        place=torch.arange(BATCH),
        uniform=rand(BATCH, latents, length),
        x0=x0,
        **options,  # type: ignore[arg-type]
    )
    return KernelCase(inputs, student, many_x, many_t, rand(BATCH * latents))
