"""Files and folders are written completely or not at all."""

from __future__ import annotations

from pathlib import Path

import pytest

from di4c_cli import files


def test_write_bytes_keeps_the_old_file_on_failure(tmp_path: Path) -> None:
    path = tmp_path / "a.txt"
    files.write_text(path, "old")
    with pytest.raises(TypeError):
        files.write_bytes(path, 3)  # type: ignore[arg-type]
    assert path.read_text() == "old" and list(tmp_path.iterdir()) == [path]


def test_new_folder_appears_complete_and_replaces_the_old_one(tmp_path: Path) -> None:
    target = tmp_path / "out"
    for word in ("one", "two"):
        with files.new_folder(target) as part:
            (part / "file").write_text(word)
            assert not target.exists() or (target / "file").read_text() != word
        assert (target / "file").read_text() == word
    assert list(tmp_path.iterdir()) == [target]


def test_new_folder_keeps_the_old_one_on_failure(tmp_path: Path) -> None:
    target = tmp_path / "out"
    with files.new_folder(target) as part:
        (part / "file").write_text("kept")
    with pytest.raises(RuntimeError), files.new_folder(target) as part:
        (part / "file").write_text("lost")
        raise RuntimeError
    assert (target / "file").read_text() == "kept" and list(tmp_path.iterdir()) == [target]
