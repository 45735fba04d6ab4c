"""Batches read ahead in threads are those of the source, in order; errors and the end of a run leave no thread."""

from __future__ import annotations

import threading

import pytest
import torch

from di4c_cli.data.items import TensorItems
from di4c_cli.data.prefetch import BATCHES_PER_WORKER, prefetched
from di4c_cli.data.stream import Batch, DataSpec, Shuffled, Source
from di4c_cli.errors import UserError

CPU = torch.device("cpu")
READS = [(start, 3) for start in range(0, 60, 3)]


def source(bad: int | None = None) -> Shuffled:
    x = torch.arange(40).view(20, 2) % 7
    if bad is not None:
        x[bad] = 100
    return Shuffled(TensorItems(x, torch.arange(20) % 3), DataSpec(0, "data/1", 2, 7, 3, label_dropout=0.3))


def readers() -> list[threading.Thread]:
    return [thread for thread in threading.enumerate() if thread.name.startswith("di4c-reader")]


class Slow:
    """A source that counts its reads and can be held back."""

    length = 2

    def __init__(self, inner: Source) -> None:
        self.inner, self.started, self.go = inner, [], threading.Event()

    def read(self, start: int, count: int) -> Batch:
        self.started.append(start)
        assert self.go.wait(60)
        return self.inner.read(start, count)


@pytest.mark.parametrize("workers", [0, 1, 3])
def test_prefetched_gives_the_batches_of_the_source_in_order(workers: int) -> None:
    with prefetched(source(), READS, workers, CPU) as ahead:
        for start, count in READS:
            found, wanted = ahead.read(start, count), source().read(start, count)
            assert found.index == wanted.index
            assert torch.equal(found.x0, wanted.x0) and torch.equal(found.label, wanted.label)  # type: ignore[arg-type]
    assert not readers()


def test_prefetched_reads_a_bounded_number_of_batches_before_they_are_asked_for() -> None:
    slow = Slow(source())
    with prefetched(slow, READS, 2, CPU) as ahead:
        assert len(readers()) == 2
        slow.go.set()
        ahead.read(0, 3)
        ahead.read(3, 3)
        assert len(slow.started) <= 2 + 2 * BATCHES_PER_WORKER
    assert not readers()
    assert len(slow.started) <= 2 + 2 * BATCHES_PER_WORKER, "reads after the end were cancelled"


def test_prefetched_raises_an_error_where_its_batch_is_asked_for() -> None:
    broken = source(bad=11)
    with prefetched(broken, READS, 2, CPU) as ahead:
        for start, count in READS:
            try:
                wanted = broken.read(start, count)
            except UserError as expected:
                with pytest.raises(UserError) as caught:
                    ahead.read(start, count)
                assert caught.value.message == expected.message and "record 11" in expected.message
                break
            assert torch.equal(ahead.read(start, count).x0, wanted.x0)  # type: ignore[arg-type]
        else:
            pytest.fail("the bad record was never read")
    assert not readers()


def test_prefetched_leaves_no_thread_after_an_interruption() -> None:
    with pytest.raises(KeyboardInterrupt), prefetched(source(), READS, 2, CPU) as ahead:
        ahead.read(0, 3)
        raise KeyboardInterrupt
    assert not readers()
