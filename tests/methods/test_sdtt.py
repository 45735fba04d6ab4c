"""SDTT by enumeration: the teacher's several steps, the target of every position, the gradient, and the rounds."""

from __future__ import annotations

import itertools
from typing import Any

import numpy as np
import pytest
import torch
from pydantic import ValidationError

from di4c_cli import recipe_file
from di4c_cli.data.stream import Batch
from di4c_cli.errors import UserError
from di4c_cli.methods.base import MethodSetup
from di4c_cli.methods.config import TimeConfig
from di4c_cli.methods.sdtt import SDTT, teacher_targets
from di4c_cli.methods.sdtt_config import SDTTConfig
from di4c_cli.noise import Noise
from di4c_cli.process import Masked
from tests.helpers.kernel_inputs import denoiser
from tests.helpers.sampler_table import tabulated

MASKED = Masked(3)
COUNT = 20_000


def reveal_law(x: tuple[int, ...], law: np.ndarray, share: float) -> dict[tuple[int, ...], float]:
    """States after one step: every masked position is revealed with probability `share`."""
    options = [
        [(v, 1.0)] if v < 3 else [(3, 1 - share), *((c, share * law[d, c]) for c in range(3))] for d, v in enumerate(x)
    ]
    return {
        tuple(v for v, _ in chosen): float(np.prod([p for _, p in chosen])) for chosen in itertools.product(*options)
    }


@pytest.mark.parametrize("count", [2, 3])
def test_target_equals_the_enumerated_one(count: int) -> None:
    """Sample by sample exactly, and in the mean over the teacher's draws within 4 standard errors."""
    teacher, t, step, start = tabulated(MASKED, 3, seed=5), 0.9, 0.25, (3, 1, 3)
    net: Any = teacher.network
    x_t = torch.tensor(start).expand(COUNT, -1)
    times = torch.full((COUNT,), t, dtype=torch.float64)
    found = teacher_targets(teacher, x_t, times, step, count, None, Noise(0, range(COUNT)), 1 << 30)
    states = [prediction.x_t for prediction in found.predictions]
    assert len(states) == count and torch.equal(states[0], x_t)
    b, d = (x_t == 3).nonzero(as_tuple=True)
    targets = found.log_probs(b, d).exp().view(COUNT, 2, 3)

    expected, paths = np.zeros((2, 3)), {(start, (start,)): 1.0}
    by_path: dict[tuple[tuple[int, ...], ...], np.ndarray] = {}
    for k in range(count):
        moved: dict[Any, float] = {}
        for (x, path), weight in paths.items():
            law = net.law(x, t - k * step)
            if k == count - 1:
                aim = np.empty((2, 3))
                for row, place in enumerate((0, 2)):  # the prediction of the last state that still has the mask there
                    last = max(i for i, state in enumerate(path) if state[place] == 3)
                    aim[row] = net.law(path[last], t - last * step)[place]
                by_path[path] = aim
                expected += weight * aim
                continue
            now, then = t - k * step, t - (k + 1) * step
            for y, p in reveal_law(x, law, (now - then) / now).items():
                moved[y, (*path, y)] = moved.get((y, (*path, y)), 0.0) + weight * p
        paths = moved or paths
    seen = torch.stack(states, 1).tolist()
    for i in range(500):
        np.testing.assert_allclose(targets[i], by_path[tuple(map(tuple, seen[i]))], atol=1e-12)
    error = targets.std(0) / COUNT**0.5
    assert bool(((targets.mean(0) - torch.tensor(expected)).abs() < 4 * error + 1e-12).all())


@pytest.mark.parametrize("chunk_mb", [1e-6, 64])
def test_loss_is_the_divergence_from_the_target(chunk_mb: float) -> None:
    student, teacher = denoiser("maskgit", False, 1), denoiser("maskgit", False, 2)
    config = SDTTConfig(step=0.1, time=TimeConfig(grid=10), chunk_mb=chunk_mb)
    method = SDTT(config, student, teacher, MethodSetup(round_number=2))
    x0 = torch.randint(0, student.symbols, (6, student.length), generator=torch.Generator().manual_seed(0))
    batch, noise = Batch(list(range(6)), x0, torch.tensor([0, 1, 2, -1, 0, 1])), Noise(0, range(6), "train")
    total, terms, active, _ = method(batch, noise)
    ours = torch.autograd.grad(total, list(student.parameters()), allow_unused=True)

    t = (1 + torch.floor(10 * noise.uniform("t"))) / 10
    x_t = student.process.corrupt(x0, t, noise.uniform("corrupt", student.length))
    targets = teacher_targets(teacher, x_t, t, 0.2, 2, batch.label, noise, 1 << 30)  # twice the first round's step
    b, d = student.process.unknown(x_t).nonzero(as_tuple=True)
    log_target, log_p = targets.log_probs(b, d), student.predict(x_t, t, batch.label).log_probs(b, d)
    rows = (log_target.exp() * (log_target - log_p)).sum(-1)
    count = student.process.unknown(x_t).sum(1)
    each = torch.zeros(6, dtype=torch.float64).index_add(0, b, rows) / count.clamp_min(1)
    assert abs(float((total - each.mean()).detach())) <= 1e-9
    torch.testing.assert_close(terms["kl"], each.detach(), rtol=0, atol=1e-9)
    assert torch.equal(active["kl"], count > 0)
    for mine, exact in zip(ours, torch.autograd.grad(each.mean(), list(student.parameters()), allow_unused=True)):
        if exact is not None:
            assert mine is not None and float((mine - exact).abs().max()) <= 1e-7


def test_student_equal_to_its_teacher_has_no_loss_at_tiny_steps() -> None:
    """Nothing is revealed in between and t hardly moves: target and student are the same prediction."""
    teacher = tabulated(MASKED, 3, seed=5)
    method = SDTT(SDTTConfig(step=1e-12, time=TimeConfig(low=0.5)), tabulated(MASKED, 3, seed=5), teacher)
    total = method(Batch(list(range(8)), torch.zeros(8, 3, dtype=torch.long)), Noise(0, range(8)))[0]
    assert abs(float(total.detach())) < 1e-9


@pytest.mark.parametrize(
    ("kind", "mixture", "words"),
    [("unet", False, "masked process"), ("uniform", False, "masked process"), ("dit", True, "without λ")],
)
def test_other_teachers_are_rejected(kind: str, mixture: bool, words: str) -> None:
    with pytest.raises(UserError, match=words) as caught:
        SDTT(SDTTConfig(), denoiser(kind, mixture), denoiser(kind, mixture))
    assert caught.value.exit_code == 2


def test_rounds_end_where_a_step_would_exceed_one() -> None:
    assert recipe_file.read("sdtt/mdlm", {"rounds": 10}).rounds == 10
    with pytest.raises(UserError, match="after 11 rounds a step of the student would be longer than 1"):
        recipe_file.read("sdtt/mdlm", {"rounds": 11})
    with pytest.raises(ValidationError):
        SDTTConfig(teacher_steps=1)
