"""The discretized-Gaussian process and its reverse posterior against stored values."""

from __future__ import annotations

from pathlib import Path

import pytest
import torch
from safetensors.torch import load_file
from torch import Tensor

from di4c_cli import load
from di4c_cli.process import Gaussian

EPS = 1e-9
"""Added to the three matrices by the original (tauldr/README.md)."""


@pytest.fixture
def case(golden: Path) -> tuple[Gaussian, dict[str, Tensor]]:
    """The process of the configuration beside the teacher, and the stored tensors."""
    process = load(str(golden / "tauldr" / "teacher")).denoiser.process
    assert isinstance(process, Gaussian)
    return process, load_file(golden / "tauldr" / "posterior" / "io.safetensors")


def test_gaussian_matrices_are_the_stored_ones(case: tuple[Gaussian, dict[str, Tensor]]) -> None:
    process, io = case
    t, s = io["t"].double(), io["s"].double()
    zero = torch.zeros_like(t)
    torch.testing.assert_close(process.base_rate, io["base_rate_f64"], rtol=0, atol=1e-9)
    for key, matrix in (
        ("q_t0", process.transition(zero, t)),
        ("q_s0", process.transition(zero, s)),
        ("q_ts", process.transition(s, t)),
    ):
        torch.testing.assert_close(matrix, io[f"{key}_f64"], rtol=0, atol=1e-9)
        torch.testing.assert_close(matrix.float(), io[key], rtol=0, atol=5e-6)


def test_gaussian_prior_is_the_published_one(case: tuple[Gaussian, dict[str, Tensor]]) -> None:
    """Stationary for even S; for odd S the published centre is half a state off, and is kept."""
    process, io = case
    torch.testing.assert_close(process.stationary(), io["initial_dist"], rtol=0, atol=1e-9)
    if process.symbols % 2 == 0:
        torch.testing.assert_close(process.stationary(), io["stationary_dist_f64"], rtol=0, atol=1e-9)


@pytest.mark.parametrize(("eps", "atol"), [(EPS, 1e-9), (0.0, 1e-5)])
def test_gaussian_posterior_is_the_stored_one(
    case: tuple[Gaussian, dict[str, Tensor]], eps: float, atol: float
) -> None:
    process, io = case
    ours = process.posterior(io["p0t"].double(), io["x_t"], io["t"].double(), io["s"].double(), eps=eps)
    torch.testing.assert_close(ours, io["p_st_f64"], rtol=0, atol=atol)
    torch.testing.assert_close(ours.float(), io["p_st"], rtol=0, atol=1e-4)


def test_gaussian_posterior_of_a_known_x0_is_the_stored_one(case: tuple[Gaussian, dict[str, Tensor]]) -> None:
    process, io = case
    certain = torch.nn.functional.one_hot(io["x_0"], process.symbols).double()
    ours = process.posterior(certain, io["x_t"], io["t"].double(), io["s"].double(), eps=EPS)
    torch.testing.assert_close(ours.float(), io["q_s_given_x0_xt"], rtol=0, atol=1e-4)
