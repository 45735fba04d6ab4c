"""Every loss term and variant of the published code, from the objective's own parts, to 1e-9 in float64."""

from __future__ import annotations

import sys
from pathlib import Path

import pytest
import torch
from safetensors.torch import load_file
from torch import Tensor

sys.path.insert(0, str(Path(__file__).parents[1] / "objective"))
from tables import Everything, flat, ones, stored

from di4c_cli.objective.core import Core
from di4c_cli.objective.problem import Outcome, Problem, Weights
from di4c_cli.objective.settings import Alpha
from di4c_cli.objective.times import alpha_at
from di4c_cli.process import Masked, Process

Tensors = dict[str, Tensor]


def close(value: Tensor, expected: Tensor) -> None:
    torch.testing.assert_close(value.double(), expected.double(), rtol=0, atol=1e-9)


def outcome(
    g: Tensors, process: Process, x_t: Tensor, x_u: Tensor, variate: str, teacher: Tensor, symbols: int
) -> Outcome:
    """All terms of all samples; logits beyond `symbols` (the mask's) are left out."""
    batch, latents = g["student_t_logits"].shape[:2]
    each = teacher.shape[1]
    student = stored(flat(g["student_t_logits"])[..., :symbols], x_t.repeat_interleave(latents, 0), process)
    problem = Problem(
        x_t=x_t,
        latents=latents,
        weights=Weights(*[ones(batch)] * 4),
        control_variate=variate,
        teacher=stored(flat(teacher)[..., :symbols], x_t.repeat_interleave(each, 0), process),
        teacher_latents=each,
        student_u=stored(flat(g["student_u_logits"])[..., :symbols], flat(x_u), process),
        place=torch.arange(batch),
        samples=g["x_0_samples"],
        x0=g["x0"],
        chunk_bytes=300,
    )
    return Core(problem, student).run(gradient=False)


def check_terms(out: Outcome, bare: Outcome, g: Tensors, prefix: str = "") -> None:
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


def alphas(g: Tensors, t: Tensor, scale: float, names: dict[str, str], prefix: str = "") -> None:
    for kind, name in names.items():
        expected = g[f"{prefix}out.{name}"]
        close(alpha_at(Alpha(kind, scale), t), expected.expand(t.shape))


@pytest.mark.parametrize("prefix", ["", "teacher_mix."])
def test_masked_sdtt(golden: Path, prefix: str) -> None:
    g = load_file(golden / "losses" / "masked_sdtt.safetensors")
    symbols = g["student_t_logits"].shape[-1] - 1
    process = Masked(symbols)
    teacher = g["teacher_lam_logits"] if prefix else g["teacher_logits"][:, None]
    out, bare = (
        outcome(g, process, g["xt"], g["xs"], variate, teacher, symbols) for variate in ("marginal", "none")
    )
    check_terms(out, bare, g, prefix)
    close(out.terms["distil"], g[f"{prefix}out.distil"])
    close(out.terms["consis"], g[f"{prefix}out.consis"])
    names = {"sigmoid": "alpha_t_sigmoid_times_const", "linear": "alpha_t_linear_times_const"}
    alphas(g, g["t"], 0.1, names | {"const": "alpha_t_const"}, prefix)
    alpha = alpha_at(Alpha("sigmoid", 0.1), g["t"])
    close(alpha_at(Alpha("sigmoid"), g["t"]), g["alpha_t_sigmoid"])
    weighted = alpha * out.terms["corr"] + out.terms["marginal"]
    close(weighted, g[f"{prefix}out.data_weighted"])
    small = g["t"] < 0.02
    close(weighted + torch.where(small, out.terms["distil"], out.terms["consis"]), g[f"{prefix}out.total"])
    plain = alpha * bare.terms["corr"] + torch.where(small, bare.terms["distil"], bare.terms["consis"])
    close(plain, g[f"{prefix}out.total_nocv"])
    print(out.terms["nll"], g[f"{prefix}out.data_pointwise_nll"])


def test_masked_maskgit_as_published(golden: Path) -> None:
    """The published loss counts known positions and the mask's class: to the core, nothing is known."""
    g = load_file(golden / "losses" / "masked_maskgit.safetensors")
    symbols = g["student_t_logits"].shape[-1]
    process, t = Everything(symbols), 1 - g["r"]
    out, bare = (
        outcome(g, process, g["x0"], g["x_0_samples"], v, g["teacher_logits"][:, None], symbols)
        for v in ("marginal", "none")
    )
    small = g["r"] >= 1 - 0.05
    close(out.terms["distil"], g["out.distil_unweighted"])
    close(out.terms["consis"], g["out.consis_unweighted"])
    for name in ("distil", "consis"):
        close(
            small * 20 * out.terms["distil"] if name == "distil" else ~small * out.terms["consis"],
            g[f"out.{name}"],
        )
    check_terms(out, bare, g)
    alphas(g, t, 0.1, {"sigmoid": "alpha_t_sigmoid_times_const", "linear": "alpha_t_linear_times_const"})


def test_gaussian_tauldr(golden: Path) -> None:
    g = load_file(golden / "losses" / "gaussian_tauldr.safetensors")
    batch, latents = g["student_t_logits"].shape[:2]
    symbols = g["student_t_logits"].shape[-1]
    process = Everything(symbols)
    out, bare = (
        outcome(g, process, g["x0"], g["x_0_samples"], v, g["teacher_logits"][:, None], symbols)
        for v in ("marginal", "none")
    )
    check_terms(out, bare, g)
    close(out.terms["consis"], g["out.consis"])
    x = g["x0"].repeat_interleave(latents, 0)
    zero = torch.zeros(batch * latents, dtype=torch.float64)
    small = Problem(
        x,
        1,
        Weights(ones(batch * latents), zero, zero, zero),
        teacher=stored(flat(g["teacher_mint_logits"]), x, process),
    )
    distil = (
        Core(small, stored(flat(g["student_mint_logits"]), x, process)).run(gradient=False).terms["distil"]
    )
    distil = distil.view(batch, latents).mean(1)
    close(distil, g["out.distil"])
    alphas(
        g, g["t"], 1.0, {"sigmoid": "alpha_t_sigmoid", "linear": "alpha_t_linear", "const": "alpha_t_none"}
    )
    alpha = alpha_at(Alpha("sigmoid"), g["t"])
    weighted = alpha * out.terms["corr"] + out.terms["marginal"]
    close(weighted, g["out.data_weighted"])
    close((weighted + distil + out.terms["consis"]).mean(), g["out.total_mean"])
    close((alpha * bare.terms["corr"] + distil + bare.terms["consis"]).mean(), g["out.total_mean_nocv"])
