"""Moment matching: kernels against the plain formulas, times, weights, the collapse warning."""

from __future__ import annotations

import pytest
import torch
from torch import Tensor

from di4c_cli.data.stream import Batch
from di4c_cli.denoiser import Denoiser
from di4c_cli.errors import UserError
from di4c_cli.methods.base import LossTuple
from di4c_cli.methods.moment_matching import MIN_MASK_SHARE, MomentMatching, diversity_warnings, sample_times, weight_at
from di4c_cli.methods.moment_matching_config import MomentMatchingConfig
from di4c_cli.noise import Noise
from di4c_cli.process import Masked, Uniform
from tests.helpers.kernel_inputs import NETWORKS, denoiser
from tests.helpers.moment_terms import auxiliary_term, log_given, student_term


def small_method(kind: str, **config: object) -> tuple[MomentMatching, Batch]:
    student, teacher = denoiser(kind, True, 1), denoiser(kind, False, 2)
    method = MomentMatching(MomentMatchingConfig(**config), student, teacher)
    with torch.no_grad():
        for parameter in method.auxiliary.parameters():
            parameter.mul_(1.1)
    g = torch.Generator().manual_seed(0)
    x0 = torch.randint(0, student.symbols, (5, student.length), generator=g)
    label = None if student.labels is None else torch.tensor([0, 1, 2, -1, 0])
    return method, Batch(list(range(5)), x0, label)


def called(method: MomentMatching, batch: Batch, part: int) -> LossTuple:
    out: LossTuple = method(batch, Noise(0, batch.index, f"train/{part}"), 0.5, part)
    return out


@pytest.mark.parametrize("kind", NETWORKS)
@pytest.mark.parametrize("part", [0, 1])
def test_kernel_equals_the_plain_formula(kind: str, part: int) -> None:
    """Chunks of one row and of all, against torch's own gradient of the formulas on whole batches."""
    method, batch = small_method(kind, teacher_weight=0.7)
    trained = [*method.parameters()]
    for chunk_mb in (1e-6, 64):
        method.config.chunk_mb = chunk_mb
        total, terms, _, _ = called(method, batch, part)
        ours = torch.autograd.grad(total, trained, allow_unused=True)
        step = method.step(batch, Noise(0, batch.index, f"train/{part}"))
        b, d = step.rows.nonzero(as_tuple=True)
        evidence = None if step.evidence is None else step.evidence(b, d)
        log_r = log_given(step.student.logits(b, d), evidence)
        log_aux = method.auxiliary.predict(step.x_s, step.s, batch.label).log_probs(b, d)
        log_teacher = step.teacher.log_probs(b, d).detach()
        if part:
            rows = auxiliary_term(log_r.detach(), log_aux, log_teacher, 0.7)
        else:
            rows = student_term(log_r, log_aux.detach(), log_teacher)
        each = torch.zeros(len(batch.index), dtype=torch.float64).index_add(0, b, rows)
        plain = (each * weight_at(method.student.process, step.s)).mean()
        assert abs((total - plain).item()) <= 1e-9
        torch.testing.assert_close(terms["auxiliary" if part else "gap"], each.detach(), rtol=0, atol=1e-9)
        for mine, exact in zip(ours, torch.autograd.grad(plain, trained, allow_unused=True)):
            if exact is not None:
                assert mine is not None and float((mine - exact).abs().max()) <= 1e-7


@pytest.mark.parametrize("kind", NETWORKS)
def test_each_part_trains_its_own_network(kind: str) -> None:
    method, batch = small_method(kind)
    student, auxiliary = (part.parameters for part in method.parts())
    assert {*map(id, student), *map(id, auxiliary)} == {*map(id, method.parameters())}
    assert method.updates(0) == (0, 1)
    assert method.parts()[1].optimizer == {"decay": "none"}
    for part, (own, other) in enumerate([(student, auxiliary), (auxiliary, student)]):
        method.zero_grad()
        called(method, batch, part)[0].backward()
        assert sum(float(p.grad.abs().sum()) for p in own if p.grad is not None) > 0
        assert all(p.grad is None for p in other)
        assert all(p.grad is None for p in method.teacher.parameters())


def test_auxiliary_network_starts_as_the_teacher_and_sees_its_label() -> None:
    student, teacher = denoiser("maskgit", True, 1), denoiser("maskgit", False, 2)
    method = MomentMatching(MomentMatchingConfig(), student, teacher)
    assert all(torch.equal(a, b) for a, b in zip(method.auxiliary.parameters(), teacher.parameters()))
    x0 = torch.zeros(4, student.length, dtype=torch.long)
    seen: list[Tensor | None] = []

    def watch(model: Denoiser) -> None:
        model.register_forward_pre_hook(lambda module, args: seen.append(args[2]))

    for model in (student, teacher, method.auxiliary):
        watch(model)
    label = torch.tensor([0, 1, 2, -1])
    total, terms, _, _ = called(method, Batch([0, 1, 2, 3], x0, label), 0)
    assert len(seen) == 3 and all(value is label for value in seen)
    assert float(total) == 0 and not terms["gap"].any(), "an auxiliary network equal to the teacher has no gap"


def test_teacher_with_a_latent_is_rejected() -> None:
    with pytest.raises(UserError, match="teacher without λ"):
        MomentMatching(MomentMatchingConfig(), denoiser("dit", True), denoiser("dit", True))


@pytest.mark.parametrize("on_grid", [False, True])
def test_times_keep_the_gap_below_one_step(on_grid: bool) -> None:
    noise = Noise(0, range(20_000))
    for steps in (1, 2, 8):
        config = MomentMatchingConfig(steps=[steps], one_share=0.25, on_grid=on_grid)
        t, s = sample_times(config, noise)
        assert bool(((s >= 0) & (s < t) & (t <= 1)).all())
        assert float((t - s).max()) <= 1 / steps + 1e-12
        expected = 0.25 + 0.75 * (1 / steps if on_grid else 1 / (2 * steps))
        assert float((t == 1).double().mean()) == pytest.approx(expected, abs=0.02)
        if on_grid:
            torch.testing.assert_close((t * steps).round() / steps, t)
    t, s = sample_times(MomentMatchingConfig(steps=[1, 8], one_share=1.0), noise)
    assert bool((t == 1).all()) and 0.35 < float((1 - s).gt(1 / 8).double().mean()) < 0.5
    t, s = sample_times(MomentMatchingConfig(steps=[2], one_share=1.0, gap_power=3.0), noise)
    assert bool((sample_times(MomentMatchingConfig(one_share=1.0, gap_power=10.0), noise)[1] < 1).all())
    for share in (0.25, 0.5, 0.75):
        found = float((2 * (1 - s)).le(share).double().mean())
        assert found == pytest.approx(share ** (1 / 3), abs=0.02)


def test_weight_is_the_reciprocal_mask_share() -> None:
    s = torch.tensor([0.0, 0.02, 0.5, 1.0], dtype=torch.float64)
    assert weight_at(Masked(3), s).tolist() == [1 / MIN_MASK_SHARE, 1 / MIN_MASK_SHARE, 2.0, 1.0]
    assert weight_at(Uniform(3), s).tolist() == [1.0] * 4


class Constant(torch.nn.Module):
    """A collapsed network: symbol 0 at every position."""

    def __init__(self, symbols: int, length: int) -> None:
        super().__init__()
        self.symbols, self.length = symbols, length
        self.scale = torch.nn.Parameter(torch.ones((), dtype=torch.float64))

    def body(self, x: Tensor, t: Tensor, label: Tensor | None = None, lam: Tensor | None = None) -> Tensor:
        return 50 * self.scale * torch.eye(self.symbols).double()[0].expand(*x.shape, -1)

    def head(self, h: Tensor, d: Tensor) -> Tensor:
        return h


@pytest.mark.parametrize("kind", ["dit", "uniform"])
def test_samples_of_a_collapsed_student_agree(kind: str) -> None:
    """A student with the data's law agrees as often as data; a constant one more often."""
    teacher = denoiser(kind, False, 2)
    symbols, length, process = teacher.symbols, teacher.length, teacher.process
    x0 = torch.randint(0, symbols, (512, length), generator=torch.Generator().manual_seed(0))
    found = []
    for level in (0.0, 1.0):
        network = Constant(symbols, length)
        network.scale.data.fill_(level)
        config = MomentMatchingConfig(steps=[1], one_share=1.0)
        method = MomentMatching(config, Denoiser(network, process), teacher)
        terms = method.step(Batch(list(range(512)), x0), Noise(0, range(512))).agreement()
        pairs = terms["pairs"] > 0
        found.append([float(terms[name][pairs].mean()) for name in ("agreement", "agreement_data")])
    assert found[0][0] == pytest.approx(1 / symbols, abs=0.05) and found[0][1] == pytest.approx(1 / symbols, abs=0.05)
    assert found[1][0] > found[1][1] + 0.1


def test_collapse_is_reported_once_with_advice() -> None:
    method, _ = small_method("dit")
    detector, warned = method.collapse_detector(), []
    for step in range(600):
        figures = {"agreement": 0.02 if step < 300 else 0.3, "agreement_data": 0.019}
        warned += [(step, text) for text in detector.update(figures)]
    assert len(warned) == 1 and warned[0][0] >= 300
    assert "two of its samples agree at" in warned[0][1] and "--set training.optimizer.lr" in warned[0][1]
    assert diversity_warnings(detector.figures) is not None
