"""Any request: given symbols stay, every position is filled, no mask is left, samples are repeatable."""

from __future__ import annotations

import pytest
import torch
from hypothesis import given as cases
from hypothesis import settings as effort
from hypothesis import strategies as st
from torch import Tensor, nn

from di4c_cli.denoiser import Denoiser
from di4c_cli.errors import UserError
from di4c_cli.latent.prior import LatentPrior
from di4c_cli.network import build
from di4c_cli.noise import Noise
from di4c_cli.process import SCHEDULES, Gaussian, Masked, Process, Uniform
from di4c_cli.sampler.config import SamplingConfig
from di4c_cli.sampler.loop import sample_batch
from di4c_cli.sampler.plan import SamplingPlan
from di4c_cli.sampler.tiles import predict


class Smooth(nn.Module):
    """Any length: logits are waves of position, neighbours, time, label and λ."""

    def __init__(self, symbols: int, length: int) -> None:
        super().__init__()
        self.length = length
        self.weight = nn.Parameter(torch.linspace(-2, 2, symbols), requires_grad=False)

    def body(self, x: Tensor, t: Tensor, label: Tensor | None = None, lam: Tensor | None = None) -> Tensor:
        extra = t + (0 if label is None else label) + (0 if lam is None else lam)
        wave = torch.arange(x.shape[1]) + 0.3 * x.roll(1, 1) + extra.float()[:, None]
        return torch.sin(wave.float())[..., None]

    def head(self, h: Tensor, d: Tensor) -> Tensor:
        return h * self.weight


def model(process: Process, length: int, mixture: bool) -> Denoiser:
    return Denoiser(Smooth(process.symbols, length), process, LatentPrior() if mixture else None, labels=4)


@st.composite
def situations(draw: st.DrawFn) -> tuple[Denoiser, SamplingPlan, Tensor | None, Tensor]:
    """A masked model, a sampler, labels or none, and given symbols."""
    length = draw(st.integers(1, 64))
    process = Masked(draw(st.integers(1, 9)), draw(st.sampled_from(sorted(SCHEDULES))))
    how = SamplingPlan(
        steps=draw(st.integers(1, 2 * length)),
        sampler=draw(st.sampled_from(["analytical", "confidence"])),
        last=draw(st.sampled_from(["sample", "argmax"])),
        guidance=draw(st.sampled_from([0.0, 2.5])),
        temperature=draw(st.sampled_from([1.0, 0.5])),
        top_p=draw(st.sampled_from([1.0, 0.7])),
        dtype=draw(st.sampled_from(["float64", "float32"])),
        tile=draw(st.sampled_from([16, 1, 0])),
    )
    label = torch.tensor([1, 3, 0]) if how.guidance or draw(st.booleans()) else None
    known = draw(st.lists(st.booleans(), min_size=length, max_size=length))
    symbols = torch.arange(length) % process.symbols
    fixed = torch.where(torch.tensor(known), symbols, -1).repeat(3, 1)
    return model(process, length, draw(st.booleans())), how, label, fixed


@pytest.mark.slow
@effort(max_examples=150, deadline=None)
@cases(situations(), st.integers(0, 1000))
def test_sampling_loop_fills_masks_and_keeps_given_symbols(
    situation: tuple[Denoiser, SamplingPlan, Tensor | None, Tensor], seed: int
) -> None:
    denoiser, how, label, fixed = situation
    seen: list[Tensor] = []
    x = sample_batch(denoiser, how, Noise(seed, [4, 5, 6]), label, fixed, on_step=lambda left, t, x: seen.append(x))
    assert x.shape == fixed.shape and x.dtype == torch.long
    assert int(x.min()) >= 0 and int(x.max()) < denoiser.symbols
    assert torch.equal(x[fixed >= 0], fixed[fixed >= 0])
    assert len(seen) == how.steps and torch.equal(seen[-1], x)
    for earlier, later in zip(seen, seen[1:]):  # noqa: RUF007
        known = earlier != denoiser.process.mask
        assert torch.equal(earlier[known], later[known])
    last = None if label is None else label[2:]
    assert torch.equal(sample_batch(denoiser, how, Noise(seed, [6]), last, fixed[2:]), x[2:])


@pytest.mark.slow
@effort(max_examples=60, deadline=None)
@cases(
    st.integers(1, 24),
    st.integers(1, 12),
    st.sampled_from(["analytical", "tau-leaping"]),
    st.sampled_from(["sample", "argmax"]),
    st.integers(0, 2),
    st.booleans(),
    st.sampled_from([Gaussian(6, 2.0, 5.0), Uniform(5, 3.0)]),
)
def test_sampling_loop_without_masks_stays_in_range_and_ends_with_given_symbols(
    length: int, steps: int, sampler: str, last: str, corrector: int, mixture: bool, process: Process
) -> None:
    how = SamplingPlan(steps=steps, sampler=sampler, last=last, grid="pixels", corrector=corrector, corrector_step=0.01)
    fixed = torch.where(torch.arange(length) % 3 == 0, 2, -1).repeat(2, 1)
    x = sample_batch(model(process, length, mixture), how, Noise(1, [0, 7]), None, fixed)
    assert int(x.min()) >= 0 and int(x.max()) < process.symbols
    assert bool((x[fixed >= 0] == 2).all())


MISTAKES = [
    ({"steps": 0}, "sampling steps are impossible"),
    ({"steps": 2, "hybrid": 3}, "exceeds the"),
    ({"sampler": "magic"}, "Choose one of"),
    ({"temperature": 0.0}, "not positive"),
    ({"top_p": 0.0}, "not a probability"),
    ({"corrector": -1}, "impossible"),
    ({"guidance": float("nan")}, "not a number"),
    ({"tile": -1}, "impossible"),
]


@pytest.mark.parametrize(("values", "words"), MISTAKES)
def test_check_ranges_rejects_impossible_values(values: dict[str, object], words: str) -> None:
    with pytest.raises(UserError, match=words):
        SamplingPlan(**values)  # type: ignore[arg-type]


REFUSED = [
    (Masked(3), {"sampler": "tau-leaping"}, {}, "τ-leaping"),
    (Masked(3), {"corrector": 1}, {}, "Corrector"),
    (Uniform(3), {"sampler": "confidence"}, {}, "masked process"),
    (Masked(3), {"guidance": 1.0}, {}, "class to guide"),
    (Masked(3), {"hybrid": 1}, {}, "needs the teacher"),
    (Masked(3), {}, {"label": torch.tensor([4])}, "Label 4 is out of range"),
    (Masked(3), {}, {"label": torch.tensor([-2])}, "Label -2 is out of range"),
    (Masked(3), {}, {"given": torch.tensor([[3, -1]])}, "outside"),
    (Masked(3), {}, {"given": torch.tensor([[0, -2]])}, "outside"),
    (Uniform(3), {"dtype": "float32", "sampler": "tau-leaping"}, {}, "float64 only"),
]


@pytest.mark.parametrize(("process", "values", "more", "words"), REFUSED)
def test_plan_rejects_what_a_model_cannot_do(
    process: Process, values: dict[str, object], more: dict[str, Tensor], words: str
) -> None:
    with pytest.raises(UserError, match=words):
        own = model(process, 2, False)
        plan = SamplingPlan.resolve(own, SamplingConfig(), "label" in more, **values)
        sample_batch(own, plan, Noise(0, [0]), **more)
    with pytest.raises(UserError, match=r"no class labels|with class labels"):
        plain = Denoiser(Smooth(3, 2), Masked(3))
        SamplingPlan.resolve(plain, SamplingConfig(), True, guidance=1.0)


def test_on_step_is_called_after_every_step() -> None:
    seen = []
    own = model(Masked(4), 6, False)
    last = sample_batch(
        own, SamplingPlan(steps=4), Noise(0, range(2)), on_step=lambda left, t, x: seen.append((left, t, x.clone()))
    )
    assert [(left, t) for left, t, _ in seen] == [(3, 0.75), (2, 0.5), (1, 0.25), (0, 0.0)]
    assert torch.equal(seen[-1][2], last)


@pytest.mark.parametrize("labels", [[0, -2], [4, 0]])
def test_check_inputs_names_the_wrong_label(labels: list[int]) -> None:
    wrong = labels[1] if labels[1] < 0 else labels[0]
    with pytest.raises(UserError, match=f"Label {wrong} is out of range"):
        sample_batch(model(Masked(4), 6, False), SamplingPlan(steps=1), Noise(0, range(2)), torch.tensor(labels))


def test_sampling_loop_uses_the_teacher_for_hybrid_steps_only() -> None:
    """The last `hybrid` steps; with `hybrid` 0 a teacher is not used although it is given."""
    student, teacher = model(Masked(4), 6, False), model(Masked(4), 6, False)
    teacher.network.weight.mul_(-1)  # type: ignore[operator, union-attr]

    def drawn(hybrid: int, helper: Denoiser | None) -> Tensor:
        return sample_batch(student, SamplingPlan(steps=3, hybrid=hybrid), Noise(0, range(8)), teacher=helper)

    assert torch.equal(drawn(0, teacher), drawn(0, None))
    assert torch.equal(drawn(3, teacher), sample_batch(teacher, SamplingPlan(steps=3), Noise(0, range(8))))
    assert not torch.equal(drawn(1, teacher), drawn(0, None))


def test_maskgit_step_counts_only_the_free_positions() -> None:
    """Half of eight are given: four steps reveal one each, and what is given is there from the start."""
    fixed = torch.tensor([[3, -1, 2, -1, 1, -1, 0, -1]] * 2)
    left = []
    own = model(Masked(4), 8, False)
    how = SamplingPlan(steps=4, sampler="confidence")
    x = sample_batch(
        own, how, Noise(0, range(2)), None, fixed, on_step=lambda _, t, x: left.append(int((x == 4).sum()))
    )
    assert left == [6, 4, 2, 0]
    assert torch.equal(x[fixed >= 0], fixed[fixed >= 0])
    shown = sample_batch(own, SamplingPlan(steps=1), Noise(0, range(2)), None, fixed)
    assert torch.equal(shown[fixed >= 0], fixed[fixed >= 0])


def test_predict_with_a_tile_of_one_computes_what_is_wanted() -> None:
    """Sample by sample, at the wanted positions only; one sample wants nothing."""
    torch.manual_seed(0)
    sizes = {"symbols": 5, "length": 7, "width": 16, "depth": 2, "heads": 2, "mlp": 32}
    own = Denoiser(build({"type": "maskgit", **sizes}), Masked(5)).double()
    x = torch.full((3, 7), 5)
    x[0, 2] = 1
    wanted = torch.zeros(3, 7, dtype=torch.bool)
    wanted[0, [1, 5]] = wanted[2, 3] = True
    t = torch.tensor([1.0, 0.5, 0.25])
    b, d = wanted.nonzero(as_tuple=True)
    part = predict(own, x, t, tile=1, wanted=wanted)
    with torch.no_grad():
        whole = own.predict(x, t).logits(b, d)
        torch.testing.assert_close(part.logits(b, d), whole)
