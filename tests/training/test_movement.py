"""A run whose weights do not move ends with exit code 1 and one sentence."""

from __future__ import annotations

from pathlib import Path

import pytest
import torch
from torch import nn

from di4c_cli.errors import Failure
from di4c_cli.training.loop import TrainingLoop
from di4c_cli.training.metrics import StepMetrics
from di4c_cli.training.movement import MIN_STEPS, MovementCheck
from di4c_cli.training.processes import make_accelerator
from di4c_cli.training.run import RunOptions, distill
from tests.helpers.small_run import small_recipe


def lose_gradients(monkeypatch: pytest.MonkeyPatch, *words: str) -> None:
    """What torch 2.9 did under bf16: some weights silently get no gradient."""
    backward = TrainingLoop._backward

    def broken(self: TrainingLoop, part: int) -> StepMetrics:
        figures = backward(self, part)
        for name, parameter in self.module.named_parameters():
            if any(word in name for word in words):
                parameter.grad = None
        return figures

    monkeypatch.setattr(TrainingLoop, "_backward", broken)


@pytest.mark.slow
def test_run_that_loses_gradients_fails_in_one_sentence(
    teacher: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    lose_gradients(monkeypatch, "network.blocks", "network.transformer")
    recipe = small_recipe(teacher, **{"training.iterations": MIN_STEPS})
    for _ in range(2):  # the second attempt finds no checkpoint that would hide it
        with pytest.raises(Failure, match=r"does not train: \d+ of \d+ weight tensors have not moved") as caught:
            distill(recipe, tmp_path / "run", RunOptions())
        assert caught.value.exit_code == 1
    assert not (tmp_path / "run" / "student").exists()


@pytest.mark.parametrize("iterations", [1, MIN_STEPS])
def test_run_whose_optimizer_does_nothing_fails(
    teacher: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, iterations: int
) -> None:
    monkeypatch.setattr(torch.optim.Adam, "step", lambda self, closure=None: None)
    with pytest.raises(Failure, match="does not train"):
        distill(small_recipe(teacher, **{"training.iterations": iterations}), tmp_path / "run", RunOptions())


@pytest.mark.slow
def test_run_with_one_unused_tensor_only_warns(teacher: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    lose_gradients(monkeypatch, "pos_emb")
    told: list[str] = []
    recipe = small_recipe(teacher, **{"training.iterations": MIN_STEPS})
    distill(recipe, tmp_path / "run", RunOptions(say=told.append))
    assert any("have not moved" in line and "pos_emb" in line for line in told), told


def check(module: nn.Module) -> MovementCheck:
    accelerator = make_accelerator("fp32", "cpu", [], Path())
    return MovementCheck(accelerator, [name for name, _ in module.named_parameters()], list(module.parameters()))


def test_movement_check_sees_one_changed_number_and_a_changed_sign() -> None:
    module = nn.Linear(300, 200)
    optimizer = torch.optim.Adam(module.parameters())
    for change in (lambda w: w[7, 9].add_(1e-7), lambda w: w[0, :2].mul_(-1)):
        watch = check(module)
        with torch.no_grad():
            change(module.weight)
        with pytest.raises(Failure, match=r"1 of 2 weight tensors.*the first is bias"):
            watch.check(optimizer, "fp32", MIN_STEPS, 1e-3)


def test_movement_check_judges_no_tensor_before_steps_and_rate_suffice() -> None:
    module = nn.Linear(3, 2)
    optimizer = torch.optim.Adam(module.parameters())
    watch = check(module)
    with torch.no_grad():
        module.bias.add_(1)
    assert watch.check(optimizer, "fp32", MIN_STEPS - 1, 1e-3) == ""
    assert watch.check(optimizer, "fp32", MIN_STEPS, 1e-9) == ""


def test_movement_check_tells_unused_tensors_from_stuck_ones() -> None:
    """One tensor of twenty stands still: a warning if it has no gradient, a failure if it has one."""
    module = nn.ParameterList([nn.Parameter(torch.ones(3)) for _ in range(20)])
    optimizer = torch.optim.Adam(module.parameters())
    watch = check(module)
    with torch.no_grad():
        for parameter in module[1:]:
            parameter.add_(1)
    assert "1 of 20" in watch.check(optimizer, "bf16", MIN_STEPS, 1e-3)
    optimizer.state[module[0]]["exp_avg"] = torch.full((3,), 1e-3)
    with pytest.raises(Failure, match=r"1 of 20.*precision bf16.*--precision fp32"):
        watch.check(optimizer, "bf16", MIN_STEPS, 1e-3)


def test_movement_check_accepts_first_steps_whose_gradients_are_zero() -> None:
    """Moment matching starts with an auxiliary network equal to the teacher, so the student's first gradient is 0."""
    module = nn.Linear(3, 2)
    optimizer = torch.optim.Adam(module.parameters())
    watch = check(module)
    for parameter in module.parameters():
        parameter.grad = torch.zeros_like(parameter)
    optimizer.step()
    assert "2 of 2" in watch.check(optimizer, "fp32", 1, 1e-3)
    with pytest.raises(Failure, match="does not train"):
        watch.check(optimizer, "fp32", MIN_STEPS, 1e-3)
