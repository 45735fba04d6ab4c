"""Stratified λ: one draw from each of L equal parts of [0, 1)."""

from __future__ import annotations

import pytest
import torch
from torch import Tensor

from di4c_cli import recipe_file
from di4c_cli.data.stream import Batch
from di4c_cli.errors import UserError
from di4c_cli.latent.prior import LatentPrior
from di4c_cli.methods.di4c import Di4C
from di4c_cli.methods.di4c_config import Di4CConfig, SplitTimeConfig
from di4c_cli.noise import Noise
from tests.helpers.enumerable import DATA, GRID, LENGTH, SYMBOLS, clean_laws, student, teacher

CONFIG = Di4CConfig(latents=GRID, stratified=True, time=SplitTimeConfig(one_share=1.0))


def nll(config: Di4CConfig, seed: int) -> Tensor:
    """-log of the mixture's estimated probability of each of the 27 configurations, from x_t without a symbol."""
    index = list(range(len(DATA)))
    method = Di4C(config, student(), teacher())
    with torch.no_grad():
        return method.loss(Batch(index, DATA), Noise(seed, index, "train")).terms["nll"]


def test_stratified_draws_one_latent_in_each_part() -> None:
    lam = LatentPrior().stratified(Noise(3, range(5000)), "lam", 4)
    assert lam.shape == (5000, 4)
    assert torch.equal((lam * 4).floor(), torch.arange(4.0, dtype=lam.dtype).expand(5000, 4))
    inside = (lam * 4 - torch.arange(4)).mean()
    assert abs(float(inside) - 0.5) < 4 / (12 * 20000) ** 0.5
    assert torch.equal(lam[7:9], LatentPrior().stratified(Noise(3, [7, 8]), "lam", 4))


@pytest.mark.parametrize("seed", range(3))
def test_stratified_estimate_of_a_mixture_with_as_many_parts_is_exact(seed: int) -> None:
    """The table has eight λ: with one draw in each eighth the estimate has no noise left."""
    masked = torch.full((1, LENGTH), SYMBOLS)
    exact = -clean_laws(student(), masked)[0].mean(0).log()
    torch.testing.assert_close(nll(CONFIG, seed), exact.to(torch.float64), rtol=0, atol=1e-9)
    blind = nll(CONFIG.model_copy(update={"stratified": False}), seed)
    assert float((blind - exact).abs().max()) > 0.05


def test_stratified_is_rejected_for_vectors_and_normal_numbers() -> None:
    for other in (
        LatentPrior(2),
        LatentPrior(1, "normal"),
        LatentPrior(1, "uniform", 5),
    ):  # as a mixture teacher may bring
        with pytest.raises(ValueError, match="one uniform number"):
            other.stratified(Noise(0, range(2)), "lam", 4)
        model = student()
        model.latent = other
        with pytest.raises(UserError, match="one uniform number"):
            Di4C(CONFIG, model, teacher())
    wanted = {"method.stratified": True}
    assert recipe_file.read("di4c/digits", wanted).method.stratified
    for wrong in ({"latent.distribution": "normal"}, {"latent.dim": 2}, {"latent.inject": "local"}):
        with pytest.raises(UserError, match="one uniform number"):
            recipe_file.read("di4c/digits", wanted | wrong)
