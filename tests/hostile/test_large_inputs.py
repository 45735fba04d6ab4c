"""Large but legitimate inputs stay within the limits: their arithmetic, and the start of files of ten gigabytes."""

from __future__ import annotations

import os
import tracemalloc
from itertools import islice
from pathlib import Path

import numpy as np
import pytest

from di4c_cli import limits, memory, schema
from di4c_cli.data import text
from di4c_cli.evaluation.sampling import MAX_SAMPLES_PER_PART
from di4c_cli.foreign import arrays, images, regular, structured
from di4c_cli.foreign import text as foreign_text
from di4c_cli.foreign.structured import parse_json
from di4c_cli.training.processes import check_processes

GB = 2**30
TEXT_BYTES = 10 * GB
IMAGES = 1_000_000
SAMPLES = 50_000


@pytest.fixture
def machine(monkeypatch: pytest.MonkeyPatch) -> None:
    """32 cores and 32 GB."""
    pages = 32 * GB // os.sysconf("SC_PAGE_SIZE")
    ask = os.sysconf
    monkeypatch.setattr(os, "sysconf", lambda name: pages if name == "SC_PHYS_PAGES" else ask(name))
    monkeypatch.setattr(os, "cpu_count", lambda: 32)
    assert memory.physical_memory() == 32 * GB


def large(path: Path, start: bytes, size: int = TEXT_BYTES, end: bytes = b"") -> Path:
    """A file of that size; between `start` and `end` it takes no room on the disk."""
    with path.open("wb") as out:
        out.write(start)
        out.truncate(size)
        out.seek(size - len(end))
        out.write(end)
    return path


def test_ten_gigabytes_of_text_are_read_piece_by_piece(tmp_path: Path) -> None:
    path = large(tmp_path / "corpus.txt", b"one two three " * 500_000, end=b"end")
    tracemalloc.start()
    (document,) = islice(text.documents(path), 1)
    assert not isinstance(document, str)
    pieces = list(islice(document, 20))
    peak = tracemalloc.get_traced_memory()[1]
    tracemalloc.stop()
    assert all(0 < len(piece) <= foreign_text.PIECE_CHARACTERS for piece in pieces)
    assert peak < 100 * 2**20


def test_ten_gigabytes_of_records_are_read_one_by_one(tmp_path: Path) -> None:
    path = large(tmp_path / "corpus.jsonl", b'{"text": "one"}\n' * 1000, end=b"\n")
    assert list(islice(text.documents(path), 1000)) == ["one"] * 1000


@pytest.mark.usefixtures("machine")
def test_ten_gigabytes_fit_the_limits_of_compressed_formats(tmp_path: Path) -> None:
    """Gzip makes text 3 to 10 times smaller; Parquet writers make row groups of up to 1 GB."""
    check = foreign_text._ratio_check(large(tmp_path / "corpus.txt.gz", b"", TEXT_BYTES // 10))
    for _ in range(TEXT_BYTES // 2**20):
        check(2**20)
    foreign_text._check_group(tmp_path / "corpus.parquet", 0, GB)


def test_ten_gigabytes_of_ids_are_read_in_place(tmp_path: Path) -> None:
    """A corpus of 50 GB has 5 billion ids of 16 bits."""
    path = large(tmp_path / "ids.bin", np.arange(1000, dtype="<u2").tobytes())
    ids = arrays.open_raw(path, np.dtype("<u2"))
    assert len(ids) == TEXT_BYTES // 2 and ids[998:1000].tolist() == [998, 999]
    assert ids[len(ids) - 2 : len(ids)].tolist() == [0, 0]


@pytest.mark.usefixtures("machine")
def test_fifty_thousand_samples_are_within_the_limits() -> None:
    assert SAMPLES <= schema.MAX_SAMPLES and MAX_SAMPLES_PER_PART <= SAMPLES
    for side, channels in ((32, 3), (256, 3)):
        assert SAMPLES * side * side * channels <= regular.in_memory_limit(), "eval --samples holds the images"
    header = arrays.ArrayHeader(np.dtype("u1"), (SAMPLES, 256, 256, 3), False, 0)
    header.check_fits("samples.npz", regular.in_memory_limit())
    limits.check_sampling_memory(samples=64, length=1024, width=1024)


@pytest.mark.usefixtures("machine")
def test_a_million_images_are_within_the_limits() -> None:
    """A folder has no limit; arrays of small images, and lists of labels, must fit into memory."""
    assert images.MAX_PIXELS >= 2048 * 2048, "photographs; ImageNet's largest has 28 million pixels"
    assert images.MAX_PIXELS >= 28_000_000
    header = arrays.ArrayHeader(np.dtype("u1"), (IMAGES, 64, 64, 3), False, 0)
    header.check_fits("images.npz", regular.in_memory_limit())
    labels = "[" + ", ".join(str(number % 1000) for number in range(IMAGES)) + "]"
    assert len(labels) <= structured.MAX_JSON_BYTES
    assert len(parse_json(labels)) == IMAGES


@pytest.mark.usefixtures("machine")
def test_processes_may_be_as_many_as_cores() -> None:
    check_processes(32, "cpu")
    check_processes(64, "cpu", oversubscribe=True)
