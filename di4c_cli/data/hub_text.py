"""Text datasets of the Hub, streamed: one Parquet file at a time, encoded into shards of a cache.

A shard is produced once, from the position at which the previous shard ended. A position in the stream is one
integer: it gives the shard and the place in it.
"""

from __future__ import annotations

import json
from collections.abc import Callable, Iterator
from contextlib import suppress
from dataclasses import asdict, dataclass
from functools import partial
from pathlib import Path
from typing import Any

import numpy as np
import torch
from torch import Tensor

from di4c_cli import files, hub
from di4c_cli.data import cache
from di4c_cli.data.stream import Batch, DataSpec
from di4c_cli.data.text import documents
from di4c_cli.data.tokens import PackedItems, encode
from di4c_cli.errors import UserError
from di4c_cli.foreign.arrays import ArrayOnDisk
from di4c_cli.foreign.structured import read_json
from di4c_cli.foreign.text import Document, count_rows
from di4c_cli.foreign.tokenizer import TextTokenizer

SHARD_SAMPLES = 1024
"""Samples per shard; their order is shuffled within a shard."""
CONVERTED_BRANCH = "refs/convert/parquet"
DOCUMENT, USED = "document", "used"
"""Keys of the state after a full shard. The last shard, if not full, has no such keys."""

Documents = Callable[[int], Iterator[Document]]
"""The documents of a dataset from a given number on."""


@dataclass(frozen=True)
class Listing:
    """The training split's Parquet files at one commit of a dataset."""

    repo: str
    commit: str
    files: list[str]


def find_listing(repo: str, revision: str | None, subset: str | None) -> Listing:
    """Ask the Hub for a dataset's files; where the dataset has no Parquet, for the Hub's own conversion."""
    client = hub.client()
    # one short request first: without a network the listing itself would retry for a minute
    url = client.hf_hub_url(repo, "README.md", repo_type="dataset", revision=revision)
    with suppress(UserError):
        hub.attempt(partial(client.get_hf_file_metadata, url, timeout=hub.TIMEOUT_SECONDS), repo)
    for branch in [revision] if revision else ["main", CONVERTED_BRANCH]:
        call = partial(client.HfApi().dataset_info, repo, revision=branch, timeout=hub.TIMEOUT_SECONDS)
        info = hub.attempt(call, f"{repo}@{branch}")
        names = sorted(file.rfilename for file in info.siblings or [])
        found = [name for name in names if name.endswith(".parquet")]
        found = [name for name in found if subset is None or name.startswith(f"{subset}/")]
        train = [name for name in found if "train" in name] or found
        if train:
            return Listing(repo, hub.check_revision(str(info.sha)), train)
    raise UserError(f"The dataset {repo} has no Parquet files.", "Download it and name a file with --data.")


def pinned_listing(name: str, repo: str, revision: str | None, subset: str | None) -> Listing:
    """The listing of the first use on this machine, so that a resumed run reads the data it began with."""
    path = cache.entry("listings", {"dataset": name}) / "listing.json"
    if not path.is_file():
        found = find_listing(repo, revision, subset)
        with cache.writable():
            files.write_text(path, json.dumps(asdict(found)))
    try:
        return Listing(**read_json(path, what="listing"))
    except TypeError as error:
        raise UserError(f"{path} is not a list of a dataset's files.", "Remove the file.") from error


def hub_documents(listing: Listing) -> Documents:
    """The documents of all files; a file is fetched when the stream reaches it."""

    def read(skip: int) -> Iterator[Document]:
        download = partial(hub.client().hf_hub_download, repo_type="dataset", revision=listing.commit)
        for name in listing.files:
            path = Path(hub.attempt(partial(download, listing.repo, name), f"{listing.repo}@{listing.commit}", name))
            rows = count_rows(path) if skip else 0
            if skip and skip >= rows:
                skip -= rows
                continue
            yield from documents(path, skip)
            skip = 0

    return read


class Streamed:
    """A numbered stream over shards that are produced when first reached.

    After the end of the dataset the numbers start over, in another order.
    """

    def __init__(
        self,
        read: Documents,
        tokenizer: TextTokenizer,
        spec: DataSpec,
        key: dict[str, Any],
        frame: int | None = None,
        shard: int = SHARD_SAMPLES,
    ) -> None:
        self.read_documents, self.tokenizer, self.spec, self.frame = read, tokenizer, spec, frame
        self.length, self.shard = spec.length, shard
        self.cut = spec.length if frame is None else spec.length - 2
        key = key | {"cut": self.cut, "shard": shard, "tokenizer": tokenizer.to_str()}
        self.folder, self.origin = cache.entry("stream", key), str(key.get("dataset", "the stream"))
        self._open: dict[int, PackedItems] = {}

    def read(self, start: int, count: int) -> Batch:
        """Samples start … start + count - 1; they may lie in two shards."""
        index = list(range(start, start + count))
        picks = []
        for sample in index:
            epoch, number, at = self.place(sample)
            order = self.spec.order(epoch * 2**20 + number, len(self.items(number)))
            picks.append(number * self.shard + int(order[at]))
        return self.spec.batch(self, index, picks)

    def rows(self, index: list[int], mirror: Tensor | None = None) -> tuple[Tensor, Tensor | None]:
        """Items of all shards, numbered shard number * shard size + place."""
        parts = [self.items(item // self.shard).rows([item % self.shard])[0] for item in index]
        return torch.cat(parts), None

    def name(self, item: int) -> str:
        return self.items(item // self.shard).name(item % self.shard)

    def place(self, sample: int) -> tuple[int, int, int]:
        """Epoch, shard, and the place in the shard's order."""
        total = self.total()
        if total is None:
            number, at = divmod(sample, self.shard)
            if len(self.items(number)) > at:
                return 0, number, at
            total = self.total()  # producing that shard reached the end
        assert total is not None
        epoch, sample = divmod(sample, total)
        return epoch, *divmod(sample, self.shard)

    def total(self) -> int | None:
        """The number of samples of the dataset, known once its end has been reached."""
        path = self.folder / "end.json"
        end = read_json(path) if path.is_file() else None
        return int(end["samples"]) if isinstance(end, dict) and type(end.get("samples")) is int else None

    def items(self, number: int) -> PackedItems:
        """The samples of a shard; none after the end."""
        if number not in self._open:
            path = self._path(number)
            if not self._usable(number):
                with cache.building(self.folder):
                    self._produce(number)
            ids: np.ndarray | ArrayOnDisk = cache.open_array(path) or np.zeros(0, np.uint16)
            self._open[number] = PackedItems(ids, self.length, f"{self.origin}, shard {number}", self.frame)
        return self._open[number]

    def _path(self, number: int) -> Path:
        return self.folder / f"{number:06d}.npy"

    def _usable(self, number: int) -> bool:
        """Whether a shard is intact and full or the last one; any other is produced again."""
        if cache.open_array(self._path(number)) is None:
            return False
        total = self.total()
        is_last = total is not None and (number + 1) * self.shard > total
        return is_last or self._read_state(number) is not None

    def _read_state(self, number: int) -> tuple[int, int] | None:
        """The document in which a full shard ends, and how many of its ids are in shards; None if that is unknown."""
        try:
            state = read_json(self._state(number))
        except UserError:
            return None
        document, used = (state.get(DOCUMENT), state.get(USED)) if isinstance(state, dict) else (None, None)
        return (document, used) if isinstance(document, int) and isinstance(used, int) else None

    def _state(self, number: int) -> Path:
        return self._path(number).with_suffix(".json")

    def _produce(self, last: int) -> None:
        """Produce every missing shard up to `last`, each with the state of the stream after it."""
        total = self.total()
        if self._usable(last) or (total is not None and last * self.shard >= total):
            return
        first = last
        while first > 0 and not self._usable(first - 1):
            first -= 1
        document, used = (first > 0 and self._read_state(first - 1)) or (0, 0)
        stream = encode(self.read_documents(document), self.tokenizer)
        need, rest, read, ended = self.shard * self.cut, np.zeros(0, np.uint32), 0, False
        for number in range(first, last + 1):
            parts, held = [rest], len(rest)
            while held < need:
                found = next(stream, None)
                if found is None:
                    self._end(number, np.concatenate(parts))
                    return
                document, read = (document + 1, 0) if ended else (document, read)
                (ids, ended), skipped = found, used
                read, used = read + len(ids), max(0, used - len(ids))
                parts.append(ids[skipped:])
                held += len(parts[-1])
            rest = np.concatenate(parts)
            # what is left belongs to the document that was read last
            self._store(number, rest[:need], {DOCUMENT: document, USED: read - (held - need)})
            rest = rest[need:]

    def _end(self, number: int, rest: np.ndarray) -> None:
        samples = len(rest) // self.cut
        total = number * self.shard + samples
        if total == 0:
            raise UserError(f"The dataset {self.origin} holds no samples.", "Name another with --data.")
        if samples:
            self._store(number, rest[: samples * self.cut], {})
        files.write_text(self.folder / "end.json", json.dumps({"samples": total}))

    def _store(self, number: int, ids: np.ndarray, state: dict[str, Any]) -> None:
        kind = np.uint16 if self.tokenizer.get_vocab_size() <= 2**16 else np.uint32
        files.write_text(self._state(number), json.dumps(state))
        cache.write_array(self._path(number), ids.astype(kind))
