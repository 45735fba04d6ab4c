"""Text, JSONL, Parquet and token files: packing, caching, and the record that is wrong."""

from __future__ import annotations

import gzip
import json
from pathlib import Path

import numpy as np
import pyarrow as arrow
import pytest
import torch
from pyarrow import parquet

from di4c_cli.data.source import find_items, open_source
from di4c_cli.errors import UserError
from tests.helpers.data_models import data_spec, gpt2_model, model, text_model

TEXTS = ["The quick brown fox.", "Jumps over", "the lazy dog, twice and more."]


def all_ids(items: object) -> list[int]:
    return [int(i) for n in range(len(items)) for i in items.rows([n])[0][0]]  # type: ignore[arg-type, attr-defined]


def write(folder: Path, kind: str) -> Path:
    path = folder / f"corpus{kind}"
    lines = "".join(json.dumps({"text": text}) + "\n" for text in TEXTS)
    if kind == "":
        path.mkdir()
        for number, text in enumerate(TEXTS):
            (path / f"{number}.txt").write_text(text)
    elif kind == ".jsonl":
        path.write_text(lines)
    elif kind == ".jsonl.gz":
        path.write_bytes(gzip.compress(lines.encode()))
    else:
        parquet.write_table(arrow.table({"text": TEXTS}), path, row_group_size=2)
    return path


@pytest.mark.parametrize("kind", ["", ".jsonl", ".jsonl.gz", ".parquet"])
def test_text_items_are_equal_for_every_file_form(tmp_path: Path, kind: str) -> None:
    model = gpt2_model(length=8)
    tokenizer = model.codec.tokenizer  # type: ignore[attr-defined]
    stream = [i for text in TEXTS for i in [*tokenizer.encode(text).ids, 50256]]
    items = find_items(str(write(tmp_path, kind)), model)
    windows = [[50256, *stream[at : at + 6], 50256] for at in range(0, len(stream) - 5, 6)]
    assert all_ids(items) == [i for window in windows for i in window]


def test_text_items_without_a_separator_have_no_frame(tmp_path: Path) -> None:
    (tmp_path / "a.txt").write_text("abcdefghij" * 3)
    model = text_model(length=8)
    items = find_items(str(tmp_path / "a.txt"), model)
    expected = model.codec.encode("abcdefghij" * 3)
    assert all_ids(items) == expected[: len(expected) // 8 * 8]


def test_text_items_are_encoded_once(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    path = write(tmp_path, ".jsonl")
    first = all_ids(find_items(str(path), gpt2_model()))
    monkeypatch.setattr("di4c_cli.data.tokens.encode", lambda *_: pytest.fail("encoded again"))
    assert all_ids(find_items(str(path), gpt2_model())) == first


@pytest.mark.parametrize("name", ["flat.npy", "flat.bin", "rows.npy"])
def test_token_files_are_read_unchanged(tmp_path: Path, name: str) -> None:
    ids = np.arange(40, dtype=np.uint16)
    path = tmp_path / name
    if name.endswith(".bin"):
        path.write_bytes(ids.tobytes())
    else:
        np.save(path, ids.reshape(5, 8) if name == "rows.npy" else ids)
    items = find_items(str(path), text_model(length=8))
    assert all_ids(items) == list(range(40))


def refused(path: Path, model: object, *words: str) -> None:
    """Opening or reading the data raises a `UserError` with these words."""
    with pytest.raises(UserError) as caught:
        open_source(str(path), model, data_spec(model)).read(0, 8)  # type: ignore[arg-type]
    assert caught.value.exit_code == 2
    for word in words:
        assert word in str(caught.value)


def test_text_items_reject_an_empty_corpus(tmp_path: Path) -> None:
    (tmp_path / "empty.txt").write_text("  \n")
    refused(tmp_path / "empty.txt", text_model(), "empty.txt", "no samples")
    (tmp_path / "short.txt").write_text("ab")
    refused(tmp_path / "short.txt", text_model(), "no samples")
    (tmp_path / "nothing").mkdir()
    refused(tmp_path / "nothing", text_model(), "holds no text")


def test_documents_name_bad_records(tmp_path: Path) -> None:
    path = tmp_path / "bad.jsonl"
    path.write_text('{"text": "fine"}\n{"txet": "wrong"}\n')
    refused(path, text_model(), "bad.jsonl", "record 2")
    path.write_text('{"text": "fine"}\n{"text": \n')
    refused(path, text_model(), "bad.jsonl", "record 2 is not JSON")
    (tmp_path / "bad.txt").write_bytes(b"fine \xff\xfe")
    refused(tmp_path / "bad.txt", text_model(), "bad.txt", "byte 5")


def test_documents_name_damaged_parquet_files(tmp_path: Path) -> None:
    path = write(tmp_path, ".parquet")
    whole = path.read_bytes()
    path.write_bytes(whole[: len(whole) // 2])
    refused(path, text_model(), "corpus.parquet", "damaged at its footer")
    path.write_bytes(whole[:4] + bytes(60) + whole[64:])
    refused(path, text_model(), "corpus.parquet", "damaged at row group 0")
    parquet.write_table(arrow.table({"body": TEXTS}), path)
    refused(path, text_model(), "no column 'text'", "body")
    parquet.write_table(arrow.table({"text": [None, "x"]}), path)
    refused(path, text_model(), "record 0")


def test_open_source_names_ids_outside_the_vocabulary(tmp_path: Path) -> None:
    ids = np.zeros((4, 8), np.uint16)
    ids[2, 5] = 300
    np.save(tmp_path / "ids.npy", ids)
    refused(tmp_path / "ids.npy", text_model(300), "ids.npy, record 2", "id 300", "vocabulary of 300")
    np.save(tmp_path / "ids.npy", np.zeros((4, 9), np.uint16))
    refused(tmp_path / "ids.npy", text_model(300), "samples of 9 values")
    np.save(tmp_path / "ids.npy", np.zeros(40))
    refused(tmp_path / "ids.npy", text_model(300), "float64")
    (tmp_path / "odd.bin").write_bytes(b"123")
    refused(tmp_path / "odd.bin", text_model(300), "odd.bin", "16-bit")


def test_check_vocabulary_rejects_a_larger_tokenizer(tmp_path: Path) -> None:
    model = text_model(300)
    model.config.codec = {"type": "text", "name": "gpt2"}
    refused(write(tmp_path, ".jsonl"), model, "50257 entries", "vocabulary 300")


def test_encode_leaves_out_unknown_words(tmp_path: Path) -> None:
    """The tokenizer of words knows 1500 words and gives the mask for any other."""
    teacher = model(1500, 4, {"type": "text", "asset": "text-units.json"})
    (tmp_path / "a.txt").write_text("We the xylophone people. The people, we")
    found = all_ids(find_items(str(tmp_path / "a.txt"), teacher))
    assert teacher.decode(torch.tensor([found]))[0].split() == ["we", "the", "people.", "the", "people,", "we"]


def test_find_items_explains_a_missing_path(tmp_path: Path) -> None:
    refused(tmp_path / "nowhere", text_model(), "no data at", "--data FILE", "--data teacher")


@pytest.mark.parametrize("kind", [".jsonl.gz", ".txt.gz"])
@pytest.mark.parametrize("damage", ["cut", "altered"])
def test_documents_name_damaged_gzip_files(tmp_path: Path, kind: str, damage: str) -> None:
    whole = bytearray(gzip.compress(json.dumps({"text": "words " * 500}).encode()))
    raw = whole[:-20] if damage == "cut" else whole[:12] + b"\xff" * 10 + whole[22:]
    (tmp_path / f"corpus{kind}").write_bytes(raw)
    with pytest.raises(UserError, match="cannot be read"):
        find_items(str(tmp_path / f"corpus{kind}"), text_model())
