"""Numbered streams: every item once an epoch, the same whatever the reads, labels and flips by number."""

from __future__ import annotations

import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from di4c_cli.data.items import TensorItems
from di4c_cli.data.stream import DataSpec, NoData, Shuffled

ITEMS = TensorItems(torch.arange(7)[:, None].repeat(1, 4), torch.arange(7) % 3)


def stream(**more: object) -> Shuffled:
    settings = {"seed": 3, "stream": "data/1", "length": 4, "symbols": 7, "labels": 3} | more
    return Shuffled(ITEMS, DataSpec(**settings))  # type: ignore[arg-type]


def test_shuffled_gives_every_item_once_per_epoch_in_a_new_order() -> None:
    first, second = (stream().read(start, 7).x0 for start in (0, 7))
    assert first is not None and second is not None
    assert sorted(first[:, 0].tolist()) == sorted(second[:, 0].tolist()) == list(range(7))
    assert first[:, 0].tolist() != second[:, 0].tolist()


@settings(max_examples=30, deadline=None)
@given(st.integers(0, 40), st.lists(st.integers(1, 9), min_size=1, max_size=4))
def test_shuffled_sample_depends_on_its_number_alone(start: int, counts: list[int]) -> None:
    source = stream(label_dropout=0.4)
    whole = source.read(start, sum(counts))
    assert whole.x0 is not None and whole.label is not None
    place = 0
    for count in counts:
        part = stream(label_dropout=0.4).read(start + place, count)
        assert torch.equal(part.x0, whole.x0[place : place + count])  # type: ignore[arg-type]
        assert torch.equal(part.label, whole.label[place : place + count])  # type: ignore[arg-type]
        place += count


def test_data_spec_orders_differ_by_seed_and_round() -> None:
    orders = [
        stream(seed=seed, stream=name).read(0, 7).x0 for seed, name in ((3, "data/1"), (4, "data/1"), (3, "data/2"))
    ]
    assert len({tuple(order[:, 0].tolist()) for order in orders if order is not None}) == 3


def test_label_dropout_has_the_stated_rate() -> None:
    label = stream(label_dropout=0.25).read(0, 4000).label
    assert label is not None
    assert abs(float((label < 0).double().mean()) - 0.25) < 0.03


def test_flip_mirrors_half_of_the_images() -> None:
    x = torch.arange(12).view(1, 12)
    items = TensorItems(x, None, (2, 2, 3))
    spec = DataSpec(0, "data/1", 12, 12, flip=True)
    batch = Shuffled(items, spec).read(0, 400).x0
    assert batch is not None
    seen = {tuple(row) for row in batch.tolist()}
    assert seen == {tuple(range(12)), (2, 1, 0, 5, 4, 3, 8, 7, 6, 11, 10, 9)}
    assert 0.4 < float((batch[:, 0] == 2).double().mean()) < 0.6


def test_no_data_gives_labels_without_samples() -> None:
    batch = NoData(DataSpec(0, "data/1", 4, 7, 3, 0.5)).read(10, 300)
    assert batch.x0 is None and batch.label is not None
    assert set(batch.label.tolist()) == {-1, 0, 1, 2}
    assert NoData(DataSpec(0, "data/1", 4, 7)).read(0, 2).label is None
