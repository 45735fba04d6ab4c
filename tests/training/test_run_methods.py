"""Runs of every method: the variational one, one of another package, and what a run gives to a method."""

from __future__ import annotations

from itertools import pairwise
from pathlib import Path
from typing import Any, ClassVar, Literal

import pytest
import torch
from safetensors.torch import load_file
from torch import Tensor

from di4c_cli.denoiser import Denoiser
from di4c_cli.methods.base import Loss, Method, TrainedPart
from di4c_cli.methods.config import MethodConfig
from di4c_cli.methods.di4c import Di4C
from di4c_cli.methods.noised_batch import TrainingSamples, corrupt_data
from di4c_cli.model import load_folder
from di4c_cli.noise import Noise
from di4c_cli.training.metrics import read_rows
from di4c_cli.training.run import RunOptions, distill
from di4c_cli.training.student_init import build_method
from tests.helpers.small_run import (
    losses,
    run_cut,
    same,
    small_recipe,
    small_recipe_of,
    small_variational_recipe,
    weights,
)


@pytest.mark.slow
def test_loss_gets_the_progress_of_the_round(teacher: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    seen: list[float] = []
    loss = Di4C.loss

    def recording(self: Di4C, batch: TrainingSamples, noise: Noise, progress: float) -> Loss:
        seen.append(progress)
        return loss(self, batch, noise, progress)

    monkeypatch.setattr(Di4C, "loss", recording)
    distill(small_recipe(teacher, method__step__grows=True), tmp_path / "run", RunOptions())
    assert seen == [step / 6 for step in range(6)]


@pytest.mark.slow
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
    teacher: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, method: str
) -> None:
    recipe = small_recipe(teacher) if method == "di4c" else small_variational_recipe(teacher)
    trained: list[Method] = []

    def build(*given: Any) -> Method:
        trained.append(build_method(*given))
        return trained[-1]

    monkeypatch.setattr("di4c_cli.training.run.build_method", build)
    distill(recipe, tmp_path / "run", RunOptions())
    (frozen,) = trained[0]._frozen
    assert len(trained) == 1 and (frozen is None) == (method == "variational")
    if frozen is not None:
        assert same(frozen.network.state_dict(), load_folder(teacher).denoiser.network.state_dict())


class Likelihood(Method):
    """A third method, known to no other file: -log p(x0|x_t; λ) at one λ, and a module of its own beside it."""

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
        extra = self.scale_error()
        return Loss(nll.mean() + extra, {"likelihood": nll.detach(), "scale": extra.detach().expand(len(t))})

    def scale_error(self) -> Tensor:
        return (self.scale(torch.ones(1, 1)) - 1).square().squeeze()


class LikelihoodInTurns(Likelihood):
    """The same with two parts: every second iteration updates the own module after the student."""

    def parts(self) -> list[TrainedPart]:
        student, own = list(self.student.parameters()), list(self.scale.parameters())
        return [TrainedPart(student), TrainedPart(own, {"lr": 0.1, "warmup": 0, "decay": "none"})]

    def updates(self, step: int) -> list[int]:
        return [0, 1] if step % 2 else [0]

    def part_loss(self, part: int, batch: TrainingSamples, noise: Noise, progress: float) -> Loss:
        if part == 0:
            return self.loss(batch, noise, progress)
        error = self.scale_error()
        return Loss(error, {"own": error.detach().expand(len(batch.index))})


class LikelihoodConfig(MethodConfig):
    """Its section; it is not registered, so a recipe gets it by hand."""

    implementation: ClassVar[str] = f"{__name__}:Likelihood"
    live_metrics: ClassVar[tuple[str, ...]] = ("loss", "likelihood")
    needs_teacher: ClassVar[bool] = False
    name: Literal["likelihood"] = "likelihood"


class LikelihoodInTurnsConfig(LikelihoodConfig):
    """Of the method with two parts."""

    implementation: ClassVar[str] = f"{__name__}:LikelihoodInTurns"


@pytest.mark.slow
@pytest.mark.filterwarnings("ignore:Pydantic serializer")  # its config is no member of the union
@pytest.mark.parametrize("config", [LikelihoodConfig, LikelihoodInTurnsConfig], ids=["one-part", "two-parts"])
def test_method_of_another_file_trains_and_resumes(
    teacher: Path, tmp_path: Path, config: type[LikelihoodConfig]
) -> None:
    recipe = small_recipe(teacher, training__optimizer__lr=0.01).model_copy(update={"method": config()})
    distill(recipe, tmp_path / "whole", RunOptions())
    rows = read_rows(tmp_path / "whole" / "metrics.jsonl")
    assert all(row["likelihood"] > 0 for row in rows) and "distil" not in rows[0]
    run_cut(recipe, tmp_path / "cut", (1, 2), (1, 4))
    assert same(weights(tmp_path / "whole"), weights(tmp_path / "cut"))
    assert losses(tmp_path / "whole") == losses(tmp_path / "cut")
    scales = [row["scale"] for row in rows]
    assert [row["scale"] for row in read_rows(tmp_path / "cut" / "metrics.jsonl")] == scales
    if config is LikelihoodConfig:
        assert all(later < earlier for earlier, later in pairwise(scales)), "its own module is trained"
    else:
        moves = [later < earlier for earlier, later in pairwise(scales)]
        assert moves == [False, True, False, True, False], "only the second part moves it, in its turn"
        assert ["own" in row for row in rows] == [False, True] * 3
        assert abs(scales[0] - 0.25) < 1e-6 and abs(scales[2] - 0.16) < 1e-3, "with its own learning rate"


@pytest.mark.slow
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


@pytest.mark.slow
@pytest.mark.parametrize("data", ["embedded", "teacher"])
def test_moment_matching_run_stopped_anywhere_gives_the_same_student(teacher: Path, tmp_path: Path, data: str) -> None:
    """Student, auxiliary network and both optimizers resume bit for bit, with data and without."""
    pool = {"training__synthetic_pool": 8, "training__synthetic_steps": 2}
    recipe = small_recipe_of("moment_matching", teacher, data=data, method__auxiliary_lr=0.01, **pool)
    distill(recipe, tmp_path / "whole", RunOptions())
    run_cut(recipe, tmp_path / "cut", (1, 2), (1, 4))
    assert same(weights(tmp_path / "whole"), weights(tmp_path / "cut"))
    assert losses(tmp_path / "whole") == losses(tmp_path / "cut")
    rows = [read_rows(tmp_path / name / "metrics.jsonl") for name in ("whole", "cut")]
    assert [row["auxiliary"] for row in rows[0]] == [row["auxiliary"] for row in rows[1]]
    assert rows[0][0]["gap"] == 0 and all(row["gap"] != 0 for row in rows[0][1:]), "it starts as the teacher"
    one, other = (tmp_path / name / "round-1/checkpoints/step-00000006/model.safetensors" for name in ("whole", "cut"))
    stored = load_file(one)
    assert same(stored, load_file(other)) and any(name.startswith("auxiliary.") for name in stored)
    assert not any("auxiliary" in name for name in weights(tmp_path / "whole")), "the folder holds the student only"


@pytest.mark.slow
def test_sdtt_rounds_keep_the_teachers_architecture(teacher: Path, tmp_path: Path) -> None:
    """Three rounds without λ, stopped in between; the student is a teacher for Di4C."""
    recipe = small_recipe_of("sdtt", teacher, training__iterations=2)
    distill(recipe, tmp_path / "whole", RunOptions())
    run_cut(recipe, tmp_path / "cut", (1, 1), (3, 1))
    assert same(weights(tmp_path / "whole"), weights(tmp_path / "cut"))
    first, last = load_folder(teacher), load_folder(tmp_path / "whole" / "student")
    assert last.config.kind == "student" and last.config.latent is None
    assert first.denoiser.network.state_dict().keys() == last.denoiser.network.state_dict().keys()
    assert "self-distillation through time" in (tmp_path / "whole" / "student" / "README.md").read_text()
    distill(small_recipe(tmp_path / "whole" / "student", training__iterations=1), tmp_path / "on-top", RunOptions())
    assert load_folder(tmp_path / "on-top" / "student").denoiser.latent is not None
