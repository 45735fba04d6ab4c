"""Text of any origin: streamed in pieces whose ids are those of the whole, never changed silently."""

from __future__ import annotations

import gzip
import io
import itertools
import random
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as arrow
import pytest
from pyarrow import parquet

from di4c_cli.codec.text import gpt2_tokenizer
from di4c_cli.data.text import documents
from di4c_cli.data.tokens import CHARACTERS_PER_CALL, encode
from di4c_cli.errors import UserError
from di4c_cli.evaluation.sample_files import read_texts
from di4c_cli.foreign import text as foreign_text
from di4c_cli.foreign.text import PIECE_CHARACTERS, check_unicode, lines, pieces
from di4c_cli.generate import prompt
from tests.helpers.data_models import gpt2_model

TOKENIZER = gpt2_tokenizer()
WORDS = [
    "word",
    "it's",
    " ",
    "  ",
    "\n",
    "\n\n",
    "\t",
    "\r\n",
    "1234",
    "...",
    "—",
    "naïve",
    "日本語",
    "\u3000",
    "a",
    "'s",
    "_x",
]


def chance_text(seed: int, count: int = 400) -> str:
    return "".join(random.Random(seed).choices(WORDS, k=count))


def stream_ids(path: Path) -> list[int]:
    return [int(i) for ids, _ in encode(documents(path), TOKENIZER) for i in ids]


@pytest.mark.parametrize("seed", range(6))
def test_pieces_join_to_the_text_and_give_its_ids(seed: int) -> None:
    tokenizer, text = TOKENIZER, chance_text(seed)
    whole = tokenizer.encode(text).ids
    for size in (60, 97, 256):
        parts = list(pieces(text, size))
        assert "".join(parts) == text and max(map(len, parts)) <= size
        assert [i for part in parts for i in tokenizer.encode(part).ids] == whole


def test_pieces_of_a_text_without_white_space_have_full_length() -> None:
    assert [len(part) for part in pieces("x" * 250, 100)] == [100, 100, 50]
    assert list(pieces("")) == [""]


@pytest.mark.parametrize("suffix", [".txt", ".txt.gz"])
def test_long_text_files_are_one_document_in_pieces(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, suffix: str
) -> None:
    text = "\n" * 300 + chance_text(0, 2000)
    path = tmp_path / f"a{suffix}"
    path.write_bytes(gzip.compress(text.encode()) if suffix.endswith("gz") else text.encode())
    monkeypatch.setattr(foreign_text, "BLOCK_BYTES", 101)
    (document,) = ["".join(found) for found in documents(path)]
    assert document == text
    assert stream_ids(path) == [*TOKENIZER.encode(text).ids, 50256]


def test_memory_of_a_text_does_not_grow_with_its_length() -> None:
    """10 GB of text: pieces of bounded length, of which one call of the tokenizer gets a bounded number."""

    class Endless(io.RawIOBase):
        left = 10 * 10**9

        def readable(self) -> bool:
            return True

        def readinto(self, target: Any) -> int:
            count = min(len(target), self.left)
            target[:count] = (b"some words " * (count // 11 + 1))[:count]
            self.left -= count
            return count

    stream = io.BufferedReader(Endless())
    blocks = iter(lambda: stream.read(foreign_text.BLOCK_BYTES).decode(), "")
    sizes = [len(piece) for piece in itertools.islice(foreign_text._joined("", blocks), 40)]
    assert max(sizes) <= PIECE_CHARACTERS and min(sizes) > PIECE_CHARACTERS // 2
    assert 60 * (CHARACTERS_PER_CALL + PIECE_CHARACTERS) < 2**27  # bytes of one call
    assert 10 * 10**9 // 4 * 2 < 2**63  # bytes of ids.bin, at four bytes a token


@pytest.mark.parametrize("place", [0, 5, 99, 100, 101, 3000])
def test_documents_name_the_byte_that_is_not_utf8(tmp_path: Path, monkeypatch: pytest.MonkeyPatch, place: int) -> None:
    monkeypatch.setattr(foreign_text, "BLOCK_BYTES", 100)
    raw = ("ä" * 2000).encode()
    place -= place % 2
    (tmp_path / "a.txt").write_bytes(raw[:place] + b"\xff" + raw[place:])
    with pytest.raises(UserError, match=f"byte {place} is not UTF-8"):
        stream_ids(tmp_path / "a.txt")
    (tmp_path / "a.txt").write_bytes(raw[:-1])
    with pytest.raises(UserError, match="byte 3998 is not UTF-8"):
        stream_ids(tmp_path / "a.txt")


def test_text_keeps_line_ends_and_nul_and_loses_the_byte_order_mark(tmp_path: Path) -> None:
    (tmp_path / "a.txt").write_bytes(b"\xef\xbb\xbfone\r\ntwo\x00three\n")
    assert ["".join(found) for found in documents(tmp_path / "a.txt")] == ["one\r\ntwo\x00three\n"]
    (tmp_path / "b.txt").write_bytes("one\u2028still one\r\ntwo\n".encode())
    assert read_texts(tmp_path / "b.txt") == ["one\u2028still one", "two"]


BAD_RECORDS = {
    b'{"text": "\\ud800"}': "surrogate",
    b'{"text": "\xff"}': "not UTF-8",
    b'{"text": 5}': "no text",
    b'{"text": "a", "text": "b"}': "twice",
    b"[" * 100_000: "deeper",
    b'{"text": "a", "n": ' + b"9" * 5000 + b"}": "digits",
    b"nonsense": "not JSON",
}


@pytest.mark.parametrize("line", BAD_RECORDS, ids=lambda line: line[:20].decode("latin1"))
def test_jsonl_names_bad_records(tmp_path: Path, line: bytes) -> None:
    path = tmp_path / "a.jsonl"
    path.write_bytes(b'{"text": "fine"}\n\n' + line + b"\n")
    with pytest.raises(UserError, match=rf"a\.jsonl, record 3.*{BAD_RECORDS[line]}"):
        stream_ids(path)
    with pytest.raises(UserError, match=rf"a\.jsonl, line 3.*{BAD_RECORDS[line]}"):
        read_texts(path)


def test_lines_name_their_limits(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(foreign_text, "MAX_RECORD_BYTES", 1000)
    (tmp_path / "a.jsonl").write_bytes(b'{"text": "' + b"x" * 2000)
    with pytest.raises(UserError, match="record 1 is longer than 1000 bytes"):
        list(lines(tmp_path / "a.jsonl"))
    (tmp_path / "a.txt.gz").write_bytes(gzip.compress(bytes(2**25)))
    with pytest.raises(UserError, match="more than 30 times its size"):
        stream_ids(tmp_path / "a.txt.gz")


def test_read_texts_rejects_what_it_used_to_replace(tmp_path: Path) -> None:
    (tmp_path / "a.txt").write_bytes(b"fine\nnot \xff fine\n")
    with pytest.raises(UserError, match=r"a\.txt, line 2 is not UTF-8"):
        read_texts(tmp_path / "a.txt")


def test_parquet_names_odd_columns_and_values(tmp_path: Path) -> None:
    path = tmp_path / "a.parquet"
    column = arrow.array(["one", "two"])
    parquet.write_table(arrow.Table.from_arrays([column, column], names=["text", "text"]), path)
    with pytest.raises(UserError, match="has 2 columns 'text'"):
        stream_ids(path)
    broken = arrow.Array.from_buffers(arrow.string(), 1, arrow.array([b"\xff\xfe"]).cast(arrow.binary()).buffers())
    parquet.write_table(arrow.table({"text": broken}), path)
    with pytest.raises(UserError, match="record 0 is not UTF-8"):
        stream_ids(path)
    parquet.write_table(arrow.table({"text": [[1], [2]]}), path)
    with pytest.raises(UserError, match="record 0 has no text"):
        stream_ids(path)


def test_parquet_rejects_row_groups_beyond_memory(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    parquet.write_table(arrow.table({"text": ["word " * 1000]}), tmp_path / "a.parquet")
    monkeypatch.setattr(foreign_text, "MAX_GROUP_BYTES", 1000)
    with pytest.raises(UserError, match=r"row group 0 has .* more than 1000 bytes"):
        stream_ids(tmp_path / "a.parquet")


def test_prompts_reject_what_is_not_text(tmp_path: Path) -> None:
    (tmp_path / "a.txt").write_bytes(b"\xff\xfe")
    with pytest.raises(UserError, match="not a text file: byte 0"):
        prompt.read(tmp_path / "a.txt")
    with pytest.raises(UserError, match="surrogate"):
        prompt.prefix(gpt2_model().codec, "half \udc80", 8)
    assert check_unicode("whole \U0001f600", "x") == "whole \U0001f600"


def test_encode_gives_every_document_its_separator(tmp_path: Path) -> None:
    tokenizer = TOKENIZER
    found = list(encode(["one", iter(["two", " three"]), ""], tokenizer))
    assert [last for _, last in found] == [True, False, True, True]
    assert np.concatenate([ids for ids, _ in found]).tolist() == [
        *tokenizer.encode("one").ids, 50256, *tokenizer.encode("two three").ids, 50256, 50256
    ]  # fmt: skip


def test_text_without_content_at_its_end_is_rejected(tmp_path: Path) -> None:
    """A sparse file takes no room on the disk and hours to tokenize."""
    path = tmp_path / "a.txt"
    with path.open("wb") as out:
        out.write(b"one two three\n")
        out.truncate(10 * 2**30)
    with pytest.raises(UserError, match=r"a\.txt has no content from byte \d+ on"):
        stream_ids(path)


def test_parquet_rejects_documents_that_a_dictionary_repeats(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """A file of 1.4 kB can hold one megabyte of text 800 times."""
    monkeypatch.setattr(foreign_text, "SMALL_BYTES", 2**20)
    path = tmp_path / "corpus.parquet"
    parquet.write_table(arrow.table({"text": ["x" * 10**5] * 100}), path)
    with pytest.raises(UserError, match="unpacks to more than 30 times its size"):
        list(documents(path))
