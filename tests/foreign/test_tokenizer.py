"""A stranger's tokenizer: the same ids and texts as in this process, but bounded memory and time."""

from __future__ import annotations

import base64
import json
import os
import resource
import struct
import subprocess
import sys
import textwrap
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
import torch
from tokenizers import Tokenizer, models

from di4c_cli import codec
from di4c_cli.codec.text import Text, gpt2_tokenizer
from di4c_cli.errors import UserError
from di4c_cli.foreign import tokenizer as foreign_tokenizer
from di4c_cli.foreign.tokenizer import BoundedTokenizer, check_tree, read_tokenizer

TREE = json.loads(gpt2_tokenizer(300).to_str())
TEXT = "Hello wörld, 1 2 3\n\n日本 it's"


def written(folder: Path, **changed: Any) -> Path:
    path = folder / "tokenizer.json"
    path.write_text(json.dumps({**TREE, **changed}))
    return path


def replace(old: str, new: str) -> dict[str, Any]:
    return {"type": "Replace", "pattern": {"String": old}, "content": new}


@pytest.fixture(scope="module")
def bounded(tmp_path_factory: pytest.TempPathFactory) -> Iterator[BoundedTokenizer]:
    yield read_tokenizer(written(tmp_path_factory.mktemp("tokenizer")))


def test_bounded_tokenizer_agrees_with_the_library(bounded: BoundedTokenizer) -> None:
    plain = gpt2_tokenizer(300)
    ids = plain.encode(TEXT).ids
    assert bounded.encode(TEXT).ids == ids
    assert [found.ids for found in bounded.encode_batch_fast([TEXT, "", "a"])] == [ids, [], plain.encode("a").ids]
    assert bounded.encode_batch_fast([]) == []
    assert bounded.decode(ids) == plain.decode(ids) == TEXT
    assert bounded.get_vocab() == plain.get_vocab() and bounded.get_vocab_size() == 300
    assert bounded.token_to_id("a") == plain.token_to_id("a") and bounded.token_to_id("nothing") is None
    assert bounded.id_to_token(5) == plain.id_to_token(5)
    assert Text(bounded).decode(torch.tensor([[*ids[:2], 300]])) == [plain.decode(ids[:2]) + "[MASK]"]
    assert Text(bounded).normalized("Ab") == "Ab"


def test_padding_and_truncation_of_the_file_are_not_applied(tmp_path: Path) -> None:
    padding = {"strategy": {"Fixed": 10**9}, "direction": "Right", "pad_to_multiple_of": None}
    padding |= {"pad_id": 0, "pad_type_id": 0, "pad_token": "x"}
    truncation = {"max_length": 1, "strategy": "LongestFirst", "stride": 0, "direction": "Right"}
    found = read_tokenizer(written(tmp_path, padding=padding, truncation=truncation))
    assert found.encode(TEXT).ids == gpt2_tokenizer(300).encode(TEXT).ids


REJECTED: dict[str, tuple[dict[str, Any], str]] = {
    "decoder": ({"decoder": {"type": "Sequence", "decoders": [replace("a", "aa")] * 40}}, "decoder that makes"),
    "normalizer": ({"normalizer": {"type": "Sequence", "normalizers": [replace("a", "aa")] * 40}}, "up to 1,099,"),
    "content": ({"decoder": replace("a", "b" * 10_000)}, "10,000 times longer, more than 256"),
    "prepend": ({"normalizer": {"type": "Prepend", "prepend": "b" * 10_000}}, "normalizer that makes"),
    "token": ({"model": {"type": "BPE", "vocab": {"a" * 5000: 0}, "merges": []}}, "5,000 characters"),
    "added": ({"added_tokens": [{"id": 0, "content": "b" * 2000}]}, "2,000 characters"),
    "model": ({"model": []}, "has no model"),
    "type": ({"model": {"type": "Nothing"}}, "cannot be read"),
    "unigram": ({"model": {"type": "Unigram", "vocab": [], "unk_id": 5}}, "cannot be read"),
    "charsmap": (
        {
            "normalizer": {
                "type": "Precompiled",
                "precompiled_charsmap": base64.b64encode(struct.pack("<I", 4) + bytes(4) + b"x" * 999 + b"\0").decode(),
            }
        },
        "999 times longer",
    ),
}


@pytest.mark.parametrize("case", REJECTED)
def test_read_tokenizer_rejects_growth_and_absurd_tokens(tmp_path: Path, case: str) -> None:
    changed, told = REJECTED[case]
    with pytest.raises(UserError, match=told) as caught:
        codec.build({"type": "text", "file": "tokenizer.json"}, written(tmp_path, **changed).parent)
    assert "tokenizer.json" in str(caught.value) and "\n" not in str(caught.value)


def test_check_tree_takes_published_normalizers() -> None:
    table = struct.pack("<I", 4) + bytes(4) + b"\0".join([b"x" * 33, b"y"]) + b"\0"  # U+FDFA has 33 bytes
    precompiled = {"type": "Precompiled", "precompiled_charsmap": base64.b64encode(table).decode()}
    spaces = {"type": "Replace", "pattern": {"Regex": " {2,}"}, "content": "▁"}
    check_tree(
        {**TREE, "normalizer": {"type": "Sequence", "normalizers": [precompiled, spaces, replace(" ", "▁")]}}, "x"
    )
    check_tree({**TREE, "model": {"vocab": {str(n): n for n in range(262_144)}}}, "x")


def test_vocabulary_limit_stands_in_the_sentence(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(foreign_tokenizer, "MAX_VOCABULARY", 100)
    with pytest.raises(UserError, match="has 300 entries, more than 100"):
        check_tree(TREE, "x")


def test_memory_of_the_child_is_bounded(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """A growth of 200 passes the check of the JSON; a million characters become 200 million of 16 bytes each."""
    monkeypatch.setattr(foreign_tokenizer, "MAX_MEMORY", 2**29)
    found = read_tokenizer(written(tmp_path, normalizer=replace("a", "b" * 200)))
    assert found._child is not None and resource.prlimit(found._child.pid, resource.RLIMIT_AS) == (2**29, 2**29)
    with pytest.raises(UserError, match="needs more than 512 MB of memory or 10 s"):
        found.encode("a" * 2**20)
    assert len(found.encode("b").ids) == 1  # a new child


def test_regular_expression_that_backtracks_ends(tmp_path: Path) -> None:
    pattern = {"type": "Split", "pattern": {"Regex": "(([a-z ])+.)+[A-Z]([a-z])+$"}, "behavior": "Isolated"}
    found = read_tokenizer(written(tmp_path, pre_tokenizer={**pattern, "invert": False}))
    with pytest.raises(UserError, match=r"cannot be used|needs more"):
        found.encode("a b c hello " * 10)


def test_child_ends_with_its_tokenizer_and_its_parent(tmp_path: Path) -> None:
    path = written(tmp_path)
    found = read_tokenizer(path)
    assert found._child is not None
    child = found._child
    del found
    assert child.poll() is not None
    script = textwrap.dedent(f"""
        import os, signal
        from pathlib import Path
        from di4c_cli.foreign.tokenizer import read_tokenizer
        found = read_tokenizer(Path({str(path)!r}))
        print(found._child.pid, flush=True)
        os.kill(os.getpid(), signal.SIGKILL)
    """)
    ended = subprocess.run([sys.executable, "-c", script], capture_output=True, text=True, check=False)
    pid = int(ended.stdout)
    for _ in range(500):
        if not Path(f"/proc/{pid}").exists() or "\nState:\tZ" in Path(f"/proc/{pid}/status").read_text():
            break
        time.sleep(0.01)
    else:
        pytest.fail(f"process {pid} is left")


def test_current_folder_does_not_reach_the_child(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    path = written(tmp_path)
    (tmp_path / "tokenizers.py").write_text("raise SystemExit('code of the current folder')")
    monkeypatch.chdir(tmp_path)
    monkeypatch.setattr(sys, "path", [entry for entry in sys.path if entry not in ("", os.getcwd())])
    assert read_tokenizer(path).get_vocab_size() == 300


def test_tokenizers_of_the_package_run_in_this_process() -> None:
    assert isinstance(codec.build({"type": "text", "asset": "text-units.json"}).tokenizer, Tokenizer)  # type: ignore[attr-defined]
    assert isinstance(codec.build({"type": "text", "name": "gpt2"}).tokenizer, Tokenizer)  # type: ignore[attr-defined]
    assert isinstance(gpt2_tokenizer(300).model, models.BPE)
