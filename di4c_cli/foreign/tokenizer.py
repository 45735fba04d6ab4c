"""Tokenizers of any origin: checked as JSON, then run in a process of bounded memory and time.

A tokenizer.json holds rules, not code, but rules can double a text forty times or search with endless backtracking, and
native code that runs out of memory ends its process. Only the tokenizers of the package run in this process.
"""

from __future__ import annotations

import base64
import json
import os
import subprocess
import sys
import weakref
from collections.abc import Iterator, Sequence
from contextlib import suppress
from dataclasses import dataclass
from functools import lru_cache
from pathlib import Path
from typing import Any, Protocol

import numpy as np

from di4c_cli.errors import Failure, UserError
from di4c_cli.foreign.regular import read_bytes, size_text
from di4c_cli.foreign.structured import read_json
from di4c_cli.foreign.tokenizer_child import CPU_SECONDS

MAX_FILE_BYTES = 100 * 2**20
"""The largest published tokenizer.json has 35 MB."""
MAX_VOCABULARY = 2**20
"""The largest published vocabulary has 262 000 entries, and config.json allows no more."""
MAX_TOKEN_CHARACTERS = 1024
"""Tokens of published vocabularies have a few hundred characters; a sample may repeat one at every position."""
MAX_GROWTH = 256
"""Characters that one character may become. Unicode's own rules give 18, a replaced space one."""
MAX_MEMORY = 2 * 2**30
"""Address space of the process: 0.3 GB for Python, up to 0.5 GB for the vocabulary, the rest for the text."""
MAX_REPLY_BYTES = 2**28
"""A request has at most 1 MB of text or the ids of one batch of samples."""
REPLACE_FILE = "Replace the file."
BOOT = (
    "import json, sys; sys.path[:] = json.loads(sys.argv[1]); "
    "from di4c_cli.foreign.tokenizer_child import serve; serve(int(sys.argv[2]))"
)
"""The child has the import path of this process; `python -m` would put the current folder first."""


class TokenIds(Protocol):
    """An encoded text."""

    @property
    def ids(self) -> Sequence[int]: ...


class TextTokenizer(Protocol):
    """The part of `tokenizers.Tokenizer` that di4c uses."""

    def get_vocab_size(self) -> int: ...
    def get_vocab(self) -> dict[str, int]: ...
    def token_to_id(self, token: str) -> int | None: ...
    def id_to_token(self, id: int) -> str | None: ...
    def to_str(self) -> str: ...
    def encode(self, sequence: str, *, add_special_tokens: bool = True) -> TokenIds: ...
    def encode_batch_fast(self, input: list[str], *, add_special_tokens: bool = True) -> Sequence[TokenIds]: ...
    def decode(self, ids: list[int], *, skip_special_tokens: bool = True) -> str: ...


@dataclass(frozen=True)
class Encoded:
    """The ids of one text, as `tokenizers.Encoding` has them."""

    ids: Sequence[int]


class BoundedTokenizer:
    """A `TextTokenizer` whose work is done by a child process; it starts with the first call.

    Published vocabularies have the mask anywhere, a model has it after its symbols. With `mask`, its published id, the
    ids behind it move down by one, and the mask becomes the last; a mask written out in a text is left out.
    """

    def __init__(self, content: str, name: str, mask: int | None = None) -> None:
        self._content, self.name, self.mask = content, name, mask
        self._child: subprocess.Popen[bytes] | None = None
        self._size = 0
        self.get_vocab_size()

    def get_vocab_size(self) -> int:
        """The number of entries, the mask not counted."""
        if self._child is None:
            self._start()
        return self._size

    def get_vocab(self) -> dict[str, int]:
        """Ids by token."""
        return {token: self._ours(id) for token, id in self._call("get_vocab", [])[0].items()}

    def _ours(self, id: int) -> int:
        return id if self.mask is None else self._size if id == self.mask else id - (id > self.mask)

    def _published(self, id: int) -> int:
        return id if self.mask is None else self.mask if id == self._size else id + (id >= self.mask)

    @lru_cache(maxsize=64)  # noqa: B019 (a tokenizer lives as long as its model)
    def token_to_id(self, token: str) -> int | None:
        """The id of a token."""
        found: int | None = self._call("token_to_id", [token])[0]
        return None if found is None else self._ours(found)

    def id_to_token(self, id: int) -> str | None:
        """The token of an id."""
        found: str | None = self._call("id_to_token", [self._published(id)])[0]
        return found

    def to_str(self) -> str:
        """The file's content, and the mask if there is one."""
        return self._content if self.mask is None else f"{self.mask} {self._content}"

    def encode(self, sequence: str, *, add_special_tokens: bool = False) -> Encoded:
        """Special tokens are never added."""
        return self.encode_batch_fast([sequence])[0]

    def encode_batch_fast(self, input: list[str], *, add_special_tokens: bool = False) -> list[Encoded]:
        """Ids of many texts; special tokens are never added."""
        lengths, rest = self._call("encode", input)
        if sum(lengths) * 4 != len(rest):
            raise self._failed("answers with another number of ids than it announces")
        ids = np.split(np.frombuffer(rest, np.uint32), np.cumsum(lengths)[:-1]) if lengths else []
        if self.mask is not None:
            ids = [part[part != self.mask] - (part[part != self.mask] > self.mask) for part in ids]
        return [Encoded(part.tolist()) for part in ids]

    def decode(self, ids: list[int], *, skip_special_tokens: bool = False) -> str:
        """Special tokens stay."""
        return str(self._call("decode", [[self._published(id) for id in ids]])[0][0])

    def normalized(self, text: str) -> str:
        """The text as the tokenizer reads it."""
        return str(self._call("normalize", text)[0])

    def _start(self) -> None:
        command = [sys.executable, "-I", "-c", BOOT, json.dumps(sys.path), str(MAX_MEMORY)]
        pipe, nothing = subprocess.PIPE, subprocess.DEVNULL
        environment = {**os.environ, "MALLOC_ARENA_MAX": "2"}  # every arena of glibc reserves 64 MB of address space
        self._child = subprocess.Popen(command, stdin=pipe, stdout=pipe, stderr=nothing, env=environment)
        weakref.finalize(self, _stop, self._child)
        self._size = int(self._call("load", self._content)[0])
        if self.mask is not None:
            highest = max(self._call("get_vocab", [])[0].values(), default=-1)
            self._size = highest + (self.mask > highest)

    def _call(self, name: str, argument: Any) -> tuple[Any, bytes]:
        if self._child is None:
            self._start()
        child = self._child
        assert child is not None and child.stdin is not None and child.stdout is not None
        try:
            child.stdin.write(json.dumps([name, argument]).encode() + b"\n")
            child.stdin.flush()
            line = child.stdout.readline(MAX_REPLY_BYTES)
            answer = json.loads(line) if line.endswith(b"\n") else None
            size = min(int(answer.get("rest", 0)), MAX_REPLY_BYTES) if isinstance(answer, dict) else 0
            rest = child.stdout.read(size)
        except (OSError, ValueError):
            answer = None
        if not isinstance(answer, dict):
            _stop(child)
            self._child = None
            limits = f"{size_text(MAX_MEMORY)} of memory or {CPU_SECONDS:.0f} s for one text"
            raise self._failed(f"needs more than {limits}, or ended")
        if "error" in answer:
            raise self._failed(f"cannot be {'read' if name == 'load' else 'used'}: {answer['error']}")
        return answer["reply"], rest

    def _failed(self, what: str) -> UserError | Failure:
        return UserError(f"The tokenizer {self.name} {what}.", REPLACE_FILE)


def _stop(child: subprocess.Popen[bytes]) -> None:
    child.kill()
    for stream in (child.stdin, child.stdout):
        with suppress(OSError):
            if stream is not None:
                stream.close()
    child.wait()


def read_tokenizer(path: Path, mask: int | None = None) -> BoundedTokenizer:
    """A tokenizer.json or vocab.txt of a model folder; `mask` as in `BoundedTokenizer`."""
    return BoundedTokenizer(json.dumps(_tree(path), ensure_ascii=False), path.name, mask)


def vocabulary(path: Path) -> dict[str, int]:
    """The published ids of a tokenizer's entries, without running it."""
    tree = _tree(path)
    found = tree["model"].get("vocab")
    entries = found if isinstance(found, dict) else {str(_list(e)[:1]): i for i, e in enumerate(_list(found))}
    added = [entry for entry in _list(tree.get("added_tokens")) if isinstance(entry, dict)]
    entries = entries | {str(entry.get("content")): entry.get("id") for entry in added}
    if not all(type(id) is int and 0 <= id < MAX_VOCABULARY for id in entries.values()):
        raise UserError(f"The tokenizer {path.name} has an entry without a usable id.", REPLACE_FILE)
    return entries


def _tree(path: Path) -> dict[str, Any]:
    if path.suffix == ".txt":
        tree: Any = _from_lines(read_bytes(path, MAX_FILE_BYTES).decode("utf-8", "replace").splitlines())
    else:
        tree = read_json(path, MAX_FILE_BYTES, "tokenizer", REPLACE_FILE)
    check_tree(tree, path.name)
    return dict(tree)


def _from_lines(lines: list[str]) -> dict[str, Any]:
    """vocab.txt as a tokenizer.json: BERT's WordPiece, uncased if it has no capitals, or ESM's, a letter a token."""
    entries = {token: id for id, token in enumerate(lines)}
    special = {token: id for token, id in entries.items() if len(token) > 2 and token[0] + token[-1] in ("[]", "<>")}
    flags = dict.fromkeys(("single_word", "lstrip", "rstrip", "normalized"), False) | {"special": True}
    tree: dict[str, Any] = {"added_tokens": [{"id": id, "content": token, **flags} for token, id in special.items()]}
    if "<cls>" in entries:
        letter = {"type": "Split", "pattern": {"Regex": "."}, "behavior": "Isolated", "invert": False}
        words = {"type": "WordLevel", "unk_token": "<unk>", "vocab": entries}
        return tree | {"pre_tokenizer": letter, "decoder": {"type": "Fuse"}, "model": words}
    cased = any(token != token.lower() for token in entries if token not in special)
    pieces = {"type": "WordPiece", "unk_token": "[UNK]", "continuing_subword_prefix": "##"}
    normal = {"clean_text": True, "handle_chinese_chars": True, "strip_accents": None, "lowercase": not cased}
    return tree | {
        "normalizer": {"type": "BertNormalizer", **normal},
        "pre_tokenizer": {"type": "BertPreTokenizer"},
        "decoder": {"type": "WordPiece", "prefix": "##", "cleanup": True},
        "model": {**pieces, "max_input_chars_per_word": 100, "vocab": entries},
    }


def check_tree(tree: Any, name: str) -> None:
    """Reject vocabularies, tokens and replacements that no real tokenizer has."""
    problem = _problem(tree)
    if problem:
        raise UserError(f"The tokenizer {name} {problem}.", REPLACE_FILE)


def _problem(tree: Any) -> str:
    if not isinstance(tree, dict) or not isinstance(tree.get("model"), dict):
        return "cannot be read: it has no model"
    tokens = list(_tokens(tree))
    if len(tokens) > MAX_VOCABULARY:
        return f"has {len(tokens):,} entries, more than {MAX_VOCABULARY:,}"
    longest = max(map(len, tokens), default=0)
    if longest > MAX_TOKEN_CHARACTERS:
        return f"has a token of {longest:,} characters, more than {MAX_TOKEN_CHARACTERS:,}"
    for part in ("normalizer", "decoder"):
        growth = _growth(tree.get(part))
        if growth > MAX_GROWTH:
            return f"has a {part} that makes a text up to {growth:,} times longer, more than {MAX_GROWTH} times"
    return ""


def _tokens(tree: dict[str, Any]) -> Iterator[str]:
    """All entries: of a mapping (BPE, WordPiece, WordLevel), of pairs (Unigram), and the added ones."""
    vocabulary = tree["model"].get("vocab")
    if isinstance(vocabulary, dict):
        yield from vocabulary
    yield from (str(entry[0]) for entry in _list(vocabulary) if isinstance(entry, list) and entry)
    yield from (str(entry.get("content")) for entry in _list(tree.get("added_tokens")) if isinstance(entry, dict))


def _growth(part: Any) -> int:
    """How many characters one character may become by the rules of a normalizer or decoder."""
    if not isinstance(part, dict):
        return 1
    growth = 1
    for inner in [*_list(part.get("normalizers")), *_list(part.get("decoders"))]:
        growth = min(growth * _growth(inner), 10**18)
    pattern, content = part.get("pattern"), part.get("content", part.get("prepend"))
    if isinstance(content, str) and len(content) > 1:
        # a regular expression may match nothing, between any two characters
        plain = pattern.get("String") if isinstance(pattern, dict) else None
        growth *= -(-len(content) // len(plain)) if isinstance(plain, str) and plain else len(content) + 1
    blob = part.get("precompiled_charsmap")
    return growth * (_longest_entry(blob) if isinstance(blob, str) else 1)


def _list(value: Any) -> list[Any]:
    return value if isinstance(value, list) else []


def _longest_entry(blob: str) -> int:
    """The longest replacement in SentencePiece's table: a length, that many bytes of a trie, texts that end in NUL."""
    try:
        table = base64.b64decode(blob)
    except ValueError:
        return 1
    texts = table[4 + int.from_bytes(table[:4], "little") :]
    return max((len(text) for text in texts.split(b"\0")), default=1) or 1
