"""Pipes, sockets, devices and folders in place of files: one sentence, and no command waits for them."""

from __future__ import annotations

import os
import socket
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from di4c_cli import recipe_file
from di4c_cli.data.cache import stamp
from di4c_cli.data.source import find_items, probe
from di4c_cli.errors import UserError
from di4c_cli.evaluation import results
from di4c_cli.evaluation.sample_files import image_batches, read_array, read_texts
from di4c_cli.foreign.regular import read_bytes, regular_file, size_text
from di4c_cli.generate import prompt
from di4c_cli.limits import read_config
from di4c_cli.metric.reference import FeatureReference
from tests.helpers.data_models import pixel_model, text_model

READERS: list[tuple[str, Callable[[Path], Any]]] = [
    ("recipe.yaml", lambda path: recipe_file.read(str(path))),
    ("results.json", results.load),
    ("config.json", lambda path: read_config(path.parent)),
    ("prompt.txt", prompt.read),
    ("texts.txt", read_texts),
    ("texts.jsonl", read_texts),
    ("array.npy", read_array),
    ("images.npz", lambda path: list(image_batches(path))),
    ("statistics.npz", FeatureReference.load),
    ("corpus.txt", lambda path: find_items(str(path), text_model())),
    ("corpus.jsonl", lambda path: find_items(str(path), text_model())),
    ("corpus.parquet", lambda path: find_items(str(path), text_model())),
    ("ids.npy", lambda path: find_items(str(path), text_model())),
    ("ids.bin", lambda path: find_items(str(path), text_model())),
    ("data.npz", lambda path: find_items(str(path), pixel_model())),
]


@pytest.mark.parametrize(("name", "read"), READERS, ids=[name for name, _ in READERS])
@pytest.mark.parametrize("kind", ["pipe", "device", "loop", "folder"])
def test_readers_reject_what_is_not_a_file(tmp_path: Path, name: str, read: Callable[[Path], Any], kind: str) -> None:
    path = tmp_path / name
    if kind == "pipe":
        os.mkfifo(path)
    elif kind == "device":
        path.symlink_to("/dev/zero")
    elif kind == "loop":
        path.symlink_to(path)
    else:
        path.mkdir()
    with pytest.raises(UserError) as caught:
        read(path)
    assert "\n" not in str(caught.value)


def test_regular_file_names_what_it_found(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    with socket.socket(socket.AF_UNIX) as listening:
        monkeypatch.chdir(tmp_path)  # the name of a socket has at most 108 bytes
        listening.bind("s")
        with pytest.raises(UserError, match="is a socket, not a file"):
            regular_file(tmp_path / "s")
    for path, told in {"/dev/null": "is a device", str(tmp_path): "is a folder", "no": "no file no"}.items():
        with pytest.raises(UserError, match=told):
            regular_file(Path(path))
    with pytest.raises(UserError, match="cannot be read"):
        regular_file(Path("a" * 5000))


def test_read_bytes_stops_at_the_limit_of_files_without_a_size() -> None:
    with pytest.raises(UserError, match="larger than 10 bytes"):
        read_bytes(Path("/proc/self/status"), 10)


def test_size_text_is_short() -> None:
    assert [size_text(size) for size in (7, 2**10, 3 * 2**20, 6 * 2**30)] == ["7 bytes", "1 kB", "3 MB", "6 GB"]


def test_data_folders_with_broken_links_and_pipes_are_described(tmp_path: Path) -> None:
    os.mkfifo(tmp_path / "pipe.txt")
    (tmp_path / "gone.png").symlink_to(tmp_path / "nowhere")
    (tmp_path / "a.txt").write_text("some words")
    assert "0.0 MB" in probe(str(tmp_path), text_model())
    with pytest.raises(UserError, match="is a pipe"):
        probe(str(tmp_path / "pipe.txt"), text_model())
    with pytest.raises(UserError, match=r"no file .*gone\.png"):
        stamp([tmp_path / "gone.png"])
    with pytest.raises(UserError, match=r"no file .*gone\.png"):
        list(image_batches(tmp_path))
