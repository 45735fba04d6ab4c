"""λ from equal parts of [0, 1): what becomes exact, what stays as it was, and whom it is refused to."""

from __future__ import annotations

from dataclasses import replace

import pytest
import torch
from torch import Tensor

from di4c_cli import recipe_file
from di4c_cli.data.batch import Batch
from di4c_cli.denoiser import Latent
from di4c_cli.errors import UserError
from di4c_cli.noise import Noise
from di4c_cli.objective.loss import Objective
from di4c_cli.objective.settings import Settings, Times
from tests.helpers.enumerable import DATA, GRID, LENGTH, SYMBOLS, clean_laws, student, teacher

SETTINGS = Settings(latents=GRID, stratified=True, time=Times(one_share=1.0))


def nll(settings: Settings, seed: int) -> Tensor:
    """-log of the mixture's estimated probability of each of the 27 configurations, from x_t without a symbol."""
    index = list(range(len(DATA)))
    objective = Objective(settings)
    with torch.no_grad():
        return objective(student(), teacher(), Batch(index, DATA), Noise(seed, index, "train")).terms["nll"]


def test_one_in_each_part() -> None:
    lam = Latent().stratified(Noise(3, range(5000)), "lam", 4)
    assert lam.shape == (5000, 4)
    assert torch.equal((lam * 4).floor(), torch.arange(4.0, dtype=lam.dtype).expand(5000, 4))
    inside = (lam * 4 - torch.arange(4)).mean()
    assert abs(float(inside) - 0.5) < 4 / (12 * 20000) ** 0.5
    assert torch.equal(lam[7:9], Latent().stratified(Noise(3, [7, 8]), "lam", 4))


@pytest.mark.parametrize("seed", range(3))
def test_a_mixture_of_as_many_parts_is_exact(seed: int) -> None:
    """The table has eight λ: with one draw in each eighth the estimate has no noise left."""
    masked = torch.full((1, LENGTH), SYMBOLS)
    exact = -clean_laws(student(), masked)[0].mean(0).log()
    torch.testing.assert_close(nll(SETTINGS, seed), exact.to(torch.float64), rtol=0, atol=1e-9)
    blind = nll(replace(SETTINGS, stratified=False), seed)
    assert float((blind - exact).abs().max()) > 0.05


def test_refused_to_vectors_and_normal_numbers() -> None:
    for other in (Latent(2), Latent(1, "normal"), Latent(1, "uniform", 5)):  # as a mixture teacher may bring
        with pytest.raises(UserError, match="one uniform number"):
            other.stratified(Noise(0, range(2)), "lam", 4)
    wanted = {"objective.stratified": True}
    assert recipe_file.read("paper/tiny-digits", wanted).objective.stratified
    for wrong in ({"latent.distribution": "normal"}, {"latent.dim": 2}, {"latent.inject": "local"}):
        with pytest.raises(UserError, match="one uniform number"):
            recipe_file.read("paper/tiny-digits", wanted | wrong)
