"""Streams that are encoded as they come: any position, after any interruption, in any process."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pyarrow as arrow
import pytest
import torch
from pyarrow import parquet

from di4c_cli.data.hub_text import Listing, Streamed, find_listing, hub_documents, pinned_listing
from di4c_cli.data.prefetch import prefetched
from di4c_cli.errors import UserError
from tests.helpers.data_models import data_spec, gpt2_model

TEXTS = [f"Document number {n}: " + "some words, " * (n % 5) for n in range(40)]
OPENED: list[int] = []


def read(skip: int) -> Iterator[str]:
    OPENED.append(skip)
    yield from TEXTS[skip:]


def stream(seed: int = 0, texts: list[str] | None = None) -> Streamed:
    model = gpt2_model(length=8)
    tokenizer = model.codec.tokenizer  # type: ignore[attr-defined]
    documents = read if texts is None else lambda skip: iter(texts[skip:])
    return Streamed(documents, tokenizer, data_spec(model, seed), {"dataset": "test"}, frame=50256, shard=5)


def test_stream_epochs_hold_the_packed_corpus_in_different_orders() -> None:
    source = stream()
    source.read(500, 1)  # far beyond the end: the end is found
    total = source.total()
    assert total is not None and total > 10
    first, second = source.read(0, total).x0, source.read(total, total).x0
    assert first is not None and second is not None
    tokenizer = source.tokenizer
    ids = [i for text in TEXTS for i in [*tokenizer.encode(text).ids, 50256]]
    packed = {(50256, *ids[at : at + 6], 50256) for at in range(0, len(ids) - 5, 6)}
    assert {tuple(row) for row in first.tolist()} == packed
    assert sorted(first.tolist()) == sorted(second.tolist())
    assert not torch.equal(first, second)


def test_stream_position_does_not_depend_on_earlier_reads() -> None:
    source = stream()
    straight = torch.cat([source.read(at, 3).x0 for at in range(0, 60, 3)])  # type: ignore[arg-type]
    for start in (57, 12, 0):
        assert torch.equal(stream().read(start, 3).x0, straight[start : start + 3])  # type: ignore[arg-type]


def test_stream_is_the_same_when_threads_read_ahead() -> None:
    reads = [(at, 3) for at in range(0, 60, 3)]
    with prefetched(stream(), reads, 3, torch.device("cpu")) as ahead:
        found = [ahead.read(*read).x0 for read in reads]
    source = stream()
    assert torch.equal(torch.cat(found), torch.cat([source.read(*read).x0 for read in reads]))  # type: ignore[arg-type]


def test_stream_resumes_after_its_last_shard() -> None:
    stream().read(0, 5)
    OPENED.clear()
    fresh = stream()
    fresh.read(0, 5)
    assert not OPENED
    fresh.read(5, 5)
    assert len(OPENED) == 1 and OPENED[0] > 0


def test_stream_rejects_an_empty_dataset() -> None:
    with pytest.raises(UserError, match="holds no samples"):
        stream(texts=["a"]).read(0, 1)


def test_hub_documents_fetch_a_file_when_it_is_reached(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    fetched: list[str] = []
    for number in range(2):
        parquet.write_table(
            arrow.table({"text": TEXTS[20 * number : 20 * number + 20]}), tmp_path / f"{number}.parquet"
        )

    def download(repo: str, name: str, repo_type: str, revision: str) -> str:
        assert (repo, repo_type, revision) == ("user/set", "dataset", "abc")
        fetched.append(name)
        return str(tmp_path / name)

    monkeypatch.setattr("huggingface_hub.hf_hub_download", download)
    documents = hub_documents(Listing("user/set", "abc", ["0.parquet", "1.parquet"]))
    assert next(documents(3)) == TEXTS[3]
    assert fetched == ["0.parquet"]
    assert list(documents(25)) == TEXTS[25:]


def test_listing_finds_and_pins_the_training_files(monkeypatch: pytest.MonkeyPatch) -> None:
    names = {
        "main": ["README.md", "script.py"],
        "refs/convert/parquet": ["text/test/0.parquet", "text/train/1.parquet", "text/train/0.parquet"],
    }
    asked: list[str] = []

    def info(self: Any, repo: str, revision: str, timeout: float) -> Any:
        asked.append(revision)
        found = [SimpleNamespace(rfilename=name) for name in names[revision]]
        return SimpleNamespace(sha=f"sha-of-{revision}", siblings=found)

    monkeypatch.setattr("huggingface_hub.HfApi.dataset_info", info)
    monkeypatch.setattr("huggingface_hub.get_hf_file_metadata", lambda url, timeout: None)
    expected = Listing("user/set", "sha-of-refs/convert/parquet", ["text/train/0.parquet", "text/train/1.parquet"])
    assert find_listing("user/set", None, None) == expected
    assert find_listing("user/set", None, "text") == expected
    with pytest.raises(UserError, match="no Parquet files"):
        find_listing("user/set", "main", None)
    assert pinned_listing("user/set", "user/set", None, None) == expected
    asked.clear()
    names["main"] = ["train.parquet"]
    assert pinned_listing("user/set", "user/set", None, None) == expected
    assert not asked


@pytest.mark.parametrize("beyond", [False, True])
def test_stream_recovers_from_a_kill_before_the_end_was_written(beyond: bool) -> None:
    source = stream(texts=TEXTS[:39])
    source.read(500, 1)
    total = source.total()
    assert total is not None and total % 5, "the last shard is cut short"
    whole = source.read(0, total).x0
    (source.folder / "end.json").unlink()
    again = stream(texts=TEXTS[:39])
    again.read(500 if beyond else total - 1, 1)
    again.read(500, 1)
    assert again.total() == total
    assert torch.equal(again.read(0, total).x0, whole)  # type: ignore[arg-type]


def test_count_rows_names_a_damaged_parquet_file(tmp_path: Path) -> None:
    from di4c_cli.foreign.text import count_rows

    path = tmp_path / "part.parquet"
    path.write_bytes(b"PAR1 and nothing more")
    with pytest.raises(UserError, match=r"part\.parquet is damaged at its footer"):
        count_rows(path)
