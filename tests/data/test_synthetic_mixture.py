"""The teacher's own samples among the data."""

from __future__ import annotations

import torch
from accelerate import Accelerator

import di4c_cli
from di4c_cli.data.stream import Batch, DataSpec, NoData, SyntheticMixture
from di4c_cli.noise import sample_seeds
from di4c_cli.recipe_file import read
from di4c_cli.training.round_data import with_synthetic


class Zeros:
    """Blank data of class 3."""

    length = 64

    def read(self, start: int, count: int) -> Batch:
        index = list(range(start, start + count))
        return Batch(index, torch.zeros(count, 64, dtype=torch.long), torch.full((count,), 3))


def teacher_samples(count: int, steps: int = 1) -> torch.Tensor:
    """Samples of the digits' teacher, of its ten labels in turn."""
    return di4c_cli.load("digits").sample(count, steps=steps, seed=5, label=torch.arange(count) % 10)


def test_mixture_takes_its_share_from_the_teacher() -> None:
    mixture = SyntheticMixture(Zeros(), teacher_samples(8, 2), 10, 0.25, seed=5)
    batch = mixture.read(0, 2000)
    assert batch.x0 is not None and batch.label is not None
    own = batch.x0.any(1)
    assert abs(float(own.double().mean()) - 0.25) < 4 * (0.25 * 0.75 / 2000) ** 0.5
    assert bool((batch.label[~own] == 3).all())
    pairs = torch.cat([batch.x0, batch.label[:, None]], dim=1)
    assert len(torch.unique(pairs[own], dim=0)) == len(torch.unique(batch.label[own])) == 8
    part = mixture.read(700, 50)  # the position is one integer
    assert part.x0 is not None and torch.equal(part.x0, batch.x0[700:750])


def test_mixture_without_data_takes_all_samples_from_the_teacher() -> None:
    empty = NoData(DataSpec(0, "data/1", 64, 8, 10, 0.5, False))
    mixture = SyntheticMixture(empty, teacher_samples(20), 10, 1.0, seed=0)
    batch, given = mixture.read(3, 60), empty.read(3, 60)
    assert batch.x0 is not None and batch.label is not None and given.label is not None
    assert torch.equal(batch.label < 0, given.label < 0)
    for x, label in zip(batch.x0, batch.label):
        assert any(torch.equal(x, mixture.pool[i]) and label in (-1, i % 10) for i in range(20))


def test_pool_is_drawn_with_labels_in_turn() -> None:
    teacher = di4c_cli.load("digits")
    recipe = read("digits", {"training.synthetic_pool": 12, "training.synthetic_steps": 1})
    mixture = with_synthetic(Zeros(), recipe, teacher, 1, Accelerator(cpu=True), lambda text: None)
    assert isinstance(mixture, SyntheticMixture) and mixture.label is not None
    assert mixture.label.tolist() == [*range(10), 0, 1]
    (seed,) = sample_seeds(f"{recipe.seed}:pool", [1])
    (number,) = sample_seeds(f"{seed}:pool", [0])
    expected = teacher.sample(12, steps=1, seed=number % 2**31, label=mixture.label)
    assert torch.equal(mixture.pool, expected)


def test_pool_of_a_student_without_labels_is_drawn_without_labels() -> None:
    """A labelled teacher is better; its samples would give the student more than the unlabelled teacher knows."""
    teacher = di4c_cli.load("digits")
    changes = {"training.synthetic_pool": 12, "training.synthetic_steps": 1, "training.label_dropout": 1.0}
    recipe = read("digits", changes)
    mixture = with_synthetic(Zeros(), recipe, teacher, 1, Accelerator(cpu=True), lambda text: None)
    assert isinstance(mixture, SyntheticMixture) and mixture.label is None
    (seed,) = sample_seeds(f"{recipe.seed}:pool", [1])
    (number,) = sample_seeds(f"{seed}:pool", [0])
    assert torch.equal(mixture.pool, teacher.sample(12, steps=1, seed=number % 2**31))
