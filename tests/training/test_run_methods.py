"""Runs of every method: the variational one, one of another package, and what a run gives to a method."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
import torch

from di4c_cli.denoiser import Denoiser
from di4c_cli.methods import implementation
from di4c_cli.methods.base import Loss, Method
from di4c_cli.methods.di4c import Di4C
from di4c_cli.methods.noised_batch import TrainingSamples, corrupt_data
from di4c_cli.model import load_folder
from di4c_cli.noise import Noise
from di4c_cli.training.metrics import read_rows
from di4c_cli.training.run import RunOptions, distill
from tests.helpers.small_run import losses, run_cut, same, small_recipe, small_variational_recipe, weights


def test_loss_gets_the_progress_of_the_round(teacher: Path, tmp_path: Path) -> None:
    seen: list[float] = []

    class Recording(Di4C):
        def loss(self, batch: TrainingSamples, noise: Noise, progress: float = 1.0) -> Loss:
            seen.append(progress)
            return super().loss(batch, noise, progress)

    recipe = small_recipe(teacher, method__step__grows=True)
    distill(recipe, tmp_path / "run", RunOptions(), method=Recording)
    assert seen == [step / 6 for step in range(6)]


def test_variational_student_with_numbers_at_every_position(teacher: Path, tmp_path: Path) -> None:
    """Trained by the variational method, written, read again: two λ at every position, and they matter."""
    recipe = small_variational_recipe(teacher, latent__inject="local", latent__dim=2, latent__init=0.3)
    distill(recipe, tmp_path / "run", RunOptions())
    assert all(row["kl"] > 0 for row in read_rows(tmp_path / "run" / "metrics.jsonl"))
    model = load_folder(tmp_path / "run" / "student")
    prior = model.denoiser.latent
    assert prior is not None and prior.size == 2 * model.denoiser.length
    x = torch.full((1, model.denoiser.length), model.denoiser.process.mask)  # type: ignore[arg-type]
    one, other = (model.log_probs(x, 1.0, latent=torch.full((1, prior.size), v)) for v in (-1.0, 1.0))
    assert float((one - other).abs().max()) > 1e-3
    assert torch.equal(model.sample(5, steps=2, seed=3), model.sample(5, steps=2, seed=3, batch_size=2))


@pytest.mark.parametrize("method", ["di4c", "variational"])
def test_run_copies_the_teacher_only_for_a_method_that_needs_it(
    teacher: Path, tmp_path: Path, method: str
) -> None:
    recipe = small_recipe(teacher) if method == "di4c" else small_variational_recipe(teacher)
    built: list[Method] = []
    trained = implementation(recipe.method)

    def recording(*given: Any) -> Method:
        built.append(trained(*given))
        return built[-1]

    recording.needs_teacher = trained.needs_teacher  # type: ignore[attr-defined]
    distill(recipe, tmp_path / "run", RunOptions(), method=recording)  # type: ignore[arg-type]
    checked, run = built
    assert checked.student.device.type == "meta" and checked._frozen == (None,)
    (frozen,) = run._frozen
    assert (frozen is None) == (method == "variational")
    if frozen is not None:
        assert same(frozen.network.state_dict(), load_folder(teacher).denoiser.network.state_dict())


class Likelihood(Method):
    """A third method, known to no other file: -log p(x0|x_t; λ) at one λ, and a module of its own beside it."""

    needs_teacher = False

    def __init__(self, config: Any, student: Denoiser, teacher: Any = None, setup: Any = None) -> None:
        super().__init__(config, student, teacher, setup)
        self.scale = torch.nn.Linear(1, 1, bias=False)
        torch.nn.init.constant_(self.scale.weight, 0.5)

    def loss(self, batch: TrainingSamples, noise: Noise, progress: float = 1.0) -> Loss:
        t = noise.uniform("t")
        x_t, x0 = corrupt_data(self.student.process, batch, t, noise)
        lam = self.student.draw_latent(noise, "lam", x_t, t, batch.label)
        unknown = self.student.process.unknown(x_t)
        rows = self.student.predict(x_t, t, batch.label, lam).dense()
        nll = -rows.gather(2, x0[..., None]).squeeze(-1).where(unknown, 0.0).sum(1)
        extra = (self.scale(torch.ones(1, 1)) - 1).square().squeeze()
        return Loss(nll.mean() + extra, {"likelihood": nll.detach(), "scale": extra.detach().expand(len(t))})


def test_method_of_another_package_trains_and_resumes(teacher: Path, tmp_path: Path) -> None:
    recipe = small_recipe(teacher, training__optimizer__lr=0.01)
    distill(recipe, tmp_path / "whole", RunOptions(), method=Likelihood)
    rows = read_rows(tmp_path / "whole" / "metrics.jsonl")
    assert all(row["likelihood"] > 0 for row in rows) and "distil" not in rows[0]
    assert rows[-1]["scale"] < rows[0]["scale"], "its own module is trained"
    run_cut(recipe, tmp_path / "cut", (1, 2), (1, 4), method=Likelihood)
    assert same(weights(tmp_path / "whole"), weights(tmp_path / "cut"))
    assert losses(tmp_path / "whole") == losses(tmp_path / "cut")
    assert [row["scale"] for row in read_rows(tmp_path / "cut" / "metrics.jsonl")] == [
        r["scale"] for r in rows
    ]


def test_variational_run_stopped_anywhere_gives_the_same_student(teacher: Path, tmp_path: Path) -> None:
    """The encoder and the learned prior resume too; the teacher's own samples are drawn again."""
    recipe = small_variational_recipe(
        teacher, training__synthetic_share=0.5, training__synthetic_pool=4, training__synthetic_steps=2
    )
    distill(recipe, tmp_path / "whole", RunOptions())
    run_cut(recipe, tmp_path / "cut", (1, 2), (1, 4))
    assert same(weights(tmp_path / "whole"), weights(tmp_path / "cut"))
    assert losses(tmp_path / "whole") == losses(tmp_path / "cut")
    row = read_rows(tmp_path / "cut" / "metrics.jsonl")[-1]
    assert {"reconstruction", "kl", "negative_elbo", "prior_loss"} <= row.keys()
