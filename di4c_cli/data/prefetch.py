"""Batches that threads read ahead, so that decoding and encoding overlap with the training step."""

from __future__ import annotations

from collections import deque
from collections.abc import Iterable, Iterator
from concurrent.futures import Future, ThreadPoolExecutor
from contextlib import closing, contextmanager

import torch

from di4c_cli.data.stream import Batch, Source

BATCHES_PER_WORKER = 2
"""Batches that are read or kept ready for each thread."""


class Prefetch:
    """A source whose announced reads, `(start, count)` in order, run in threads before they are asked for.

    The batches are those of the source: sample numbers alone decide them. An error of a read is raised where its batch
    is asked for.
    """

    def __init__(self, source: Source, reads: Iterable[tuple[int, int]], workers: int, device: torch.device) -> None:
        self.source, self.length, self.device, self._reads = source, source.length, device, iter(reads)
        self._pool = ThreadPoolExecutor(workers, "di4c-reader", _use_device, (device,))
        self._coming: deque[tuple[tuple[int, int], Future[Batch]]] = deque()
        for _ in range(BATCHES_PER_WORKER * workers):
            self._announce()

    def read(self, start: int, count: int) -> Batch:
        """The next of the announced reads."""
        announced, batch = self._coming.popleft()
        assert announced == (start, count)
        self._announce()
        return batch.result()

    def _announce(self) -> None:
        for start, count in self._reads:
            self._coming.append(((start, count), self._pool.submit(self._read, start, count)))
            return

    def _read(self, start: int, count: int) -> Batch:
        batch = self.source.read(start, count)
        return batch.pinned() if self.device.type == "cuda" else batch

    def close(self) -> None:
        """End the threads, after the reads that have begun."""
        self._pool.shutdown(cancel_futures=True)


@contextmanager
def prefetched(
    source: Source, reads: Iterable[tuple[int, int]], workers: int, device: torch.device
) -> Iterator[Source]:
    """The source with `reads` ahead in `workers` threads, which end with the block; without workers the source."""
    if workers == 0:
        yield source
        return
    with closing(Prefetch(source, reads, workers, device)) as ahead:
        yield ahead


def _use_device(device: torch.device) -> None:
    """Torch keeps the current GPU and stream for each thread; an own stream runs beside that of the training step."""
    if device.type == "cuda":
        torch.cuda.set_device(device)
        torch.cuda.set_stream(torch.cuda.Stream(device))
