"""Every loss term and variant of the published code, from the kernel of the Di4C terms, to 1e-9 in float64.

The totals are the paper's compositions as configs: `Di4C.weights` decides, the kernel adds up.
"""

from __future__ import annotations

from pathlib import Path

import pytest
import torch
from safetensors.torch import load_file
from torch import Tensor

from di4c_cli.methods.di4c import Di4C
from di4c_cli.methods.di4c_config import AlphaConfig, DeltaConfig, Di4CConfig, StepConfig
from di4c_cli.methods.di4c_times import SampledTimes, alpha_at
from di4c_cli.methods.kernels import LossInputs, LossOutput, TermWeights
from di4c_cli.methods.kernels.chunked import ChunkedLoss
from di4c_cli.methods.noised_batch import NoisedBatch
from di4c_cli.noise import Noise
from di4c_cli.process import Masked, Process
from tests.helpers import enumerable
from tests.helpers.tables import Everything, flat, ones, stored

Tensors = dict[str, Tensor]
SDTT = Di4CConfig(delta=DeltaConfig(low=0.02, high=0.02), alpha=AlphaConfig(kind="sigmoid", scale=0.1))
MASKGIT = Di4CConfig(
    delta=DeltaConfig(low=0.05, high=0.05),
    step=StepConfig(low=0.05, high=0.05),
    distil_weight="1/step",
    alpha=AlphaConfig(kind="sigmoid", scale=0.1),
)
TAULDR = Di4CConfig(
    branch="both",
    delta=DeltaConfig(low=0.01, high=0.02, at_low=0.5),
    step=StepConfig(low=0.001, high=0.01),
    alpha=AlphaConfig(kind="sigmoid"),
)


def close(value: Tensor, expected: Tensor) -> None:
    torch.testing.assert_close(value.double(), expected.double(), rtol=0, atol=1e-9)


def weights(config: Di4CConfig, t: Tensor, variate: str) -> TermWeights:
    """The weights of the config at t; published runs without a variate have no marginal term either."""
    bare = config.model_copy(update={"marginal_weight": 0.0}) if variate == "none" else config
    full = torch.full_like
    times = SampledTimes(t, t, full(t, config.step.low), full(t, config.delta.low))
    batch = NoisedBatch(torch.zeros(len(t), 1), None, None, times, Noise(0, range(len(t))))
    return Di4C(bare, enumerable.student(), enumerable.teacher()).weights(batch)


def outcome(
    g: Tensors,
    process: Process,
    x_t: Tensor,
    x_u: Tensor,
    variate: str,
    teacher: Tensor,
    chosen: TermWeights | None = None,
) -> LossOutput:
    """The kernel on stored tensors, all terms of all samples unless weights are given.

    Logits beyond the process's symbols, the mask's, are left out.
    """
    batch, latents = g["student_t_logits"].shape[:2]
    each, symbols = teacher.shape[1], process.symbols
    student = stored(flat(g["student_t_logits"])[..., :symbols], x_t.repeat_interleave(latents, 0), process)
    inputs = LossInputs(
        x_t=x_t,
        latents=latents,
        weights=chosen or TermWeights(*[ones(batch)] * 4),
        control_variate=variate,
        teacher=stored(flat(teacher)[..., :symbols], x_t.repeat_interleave(each, 0), process),
        teacher_latents=each,
        student_u=stored(flat(g["student_u_logits"])[..., :symbols], flat(x_u), process),
        place=torch.arange(batch),
        samples=g["x_0_samples"],
        x0=g["x0"],
        chunk_bytes=300,
    )
    return ChunkedLoss(inputs, student).run(gradient=False)


def check_terms(out: LossOutput, bare: LossOutput, g: Tensors, prefix: str = "") -> None:
    for name, value in {
        "data_cor": out.terms["corr"],
        "data_cor_nocv": bare.terms["corr"],
        "data_indep": out.terms["marginal"],
        "consis_cor": out.terms["consis_corr"],
        "consis_cor_nocv": bare.terms["consis_corr"],
        "consis_indep": out.terms["consis_indep"],
    }.items():
        close(value, g[f"{prefix}out.{name}"])
    assert float(bare.terms["consis_indep"].abs().max()) == 0


def check_alphas(g: Tensors, t: Tensor, scale: float, names: dict[str, str], prefix: str = "") -> None:
    for kind, name in names.items():
        close(alpha_at(AlphaConfig(kind=kind, scale=scale), t), g[f"{prefix}out.{name}"].expand(t.shape))


SCALED = {"sigmoid": "alpha_t_sigmoid_times_const", "linear": "alpha_t_linear_times_const", "const": "alpha_t_const"}


@pytest.mark.parametrize("prefix", ["", "teacher_mix."], ids=["product", "mixture"])
def test_di4c_loss_gives_the_sdtt_values(golden: Path, prefix: str) -> None:
    g = load_file(golden / "losses" / "masked_sdtt.safetensors")
    process, t = Masked(g["student_t_logits"].shape[-1] - 1), g["t"]
    teacher = g["teacher_lam_logits"] if prefix else g["teacher_logits"][:, None]
    inputs = (g, process, g["xt"], g["xs"])
    out, bare = (outcome(*inputs, variate, teacher) for variate in ("marginal", "none"))
    check_terms(out, bare, g, prefix)
    for name, key in {"distil": "distil", "consis": "consis", "nll": "data_pointwise_nll"}.items():
        close(out.terms[name], g[f"{prefix}out.{key}"])
    check_alphas(g, t, 0.1, SCALED, prefix)
    close(alpha_at(AlphaConfig(kind="sigmoid"), t), g["alpha_t_sigmoid"])
    weighted = alpha_at(SDTT.alpha, t) * out.terms["corr"] + out.terms["marginal"]
    close(weighted, g[f"{prefix}out.data_weighted"])
    for variate, key in (("marginal", "total"), ("none", "total_nocv")):
        close(outcome(*inputs, variate, teacher, weights(SDTT, t, variate)).total, g[f"{prefix}out.{key}"])


def test_di4c_loss_gives_the_maskgit_values(golden: Path) -> None:
    """The published loss counts known positions and the mask's class: to the kernel, nothing is known."""
    g = load_file(golden / "losses" / "masked_maskgit.safetensors")
    process, t = Everything(g["student_t_logits"].shape[-1]), 1 - g["r"]
    inputs, teacher = (g, process, g["x0"], g["x_0_samples"]), g["teacher_logits"][:, None]
    out, bare = (outcome(*inputs, variate, teacher) for variate in ("marginal", "none"))
    check_terms(out, bare, g)
    chosen = weights(MASKGIT, t, "marginal")
    close((chosen.distil != 0).double(), g["out.distil_branch"])
    for name in ("distil", "consis"):
        close(out.terms[name], g[f"out.{name}_unweighted"])
        close(getattr(chosen, name) * out.terms[name], g[f"out.{name}"])
    check_alphas(g, t, 0.1, SCALED)
    close(alpha_at(AlphaConfig(kind="sigmoid"), t), g["alpha_t_sigmoid"])
    close(chosen.corr * out.terms["corr"] + out.terms["marginal"], g["out.data_weighted"])
    for variate, key in (("marginal", "total_mean"), ("none", "total_mean_nocv")):
        close(outcome(*inputs, variate, teacher, weights(MASKGIT, t, variate)).total.mean(), g[f"out.{key}"])


def small_times(g: Tensors, process: Process) -> Tensor:
    """The distillation term of the pixels: every latent has a time, an x and a teacher of its own."""
    batch, latents = g["student_t_logits"].shape[:2]
    x, one = g["x0"].repeat_interleave(latents, 0), ones(batch * latents)
    teacher = stored(flat(g["teacher_mint_logits"]), x, process)
    inputs = LossInputs(x, 1, TermWeights(one, 0 * one, 0 * one, 0 * one), teacher=teacher)
    out = ChunkedLoss(inputs, stored(flat(g["student_mint_logits"]), x, process)).run(gradient=False)
    return out.terms["distil"].view(batch, latents).mean(1)


def test_di4c_loss_gives_the_tauldr_values(golden: Path) -> None:
    g = load_file(golden / "losses" / "gaussian_tauldr.safetensors")
    process, t = Everything(g["student_t_logits"].shape[-1]), g["t"]
    inputs, teacher = (g, process, g["x0"], g["x_0_samples"]), g["teacher_logits"][:, None]
    out, bare = (outcome(*inputs, variate, teacher) for variate in ("marginal", "none"))
    check_terms(out, bare, g)
    close(out.terms["consis"], g["out.consis"])
    distil = small_times(g, process)
    close(distil, g["out.distil"])
    check_alphas(g, t, 1.0, {"sigmoid": "alpha_t_sigmoid", "linear": "alpha_t_linear", "const": "alpha_t_none"})
    weighted = alpha_at(TAULDR.alpha, t) * out.terms["corr"] + out.terms["marginal"]
    close(weighted, g["out.data_weighted"])
    for variate, key in (("marginal", "total_mean"), ("none", "total_mean_nocv")):
        total = outcome(*inputs, variate, teacher, weights(TAULDR, t, variate)).total
        close((total + distil).mean(), g[f"out.{key}"])
