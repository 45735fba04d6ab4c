"""Files and folders are written completely or not at all."""

from __future__ import annotations

import errno
import os
import subprocess
import sys
from pathlib import Path

import pytest

from di4c_cli import files, model_folder
from di4c_cli.errors import Failure, UserError


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


def test_write_bytes_of_two_processes_do_not_share_a_temporary_file(tmp_path: Path) -> None:
    """A second writer of the same name takes another temporary file while the first is at work."""
    with files.new_folder(tmp_path / "x") as one, files.new_folder(tmp_path / "x") as two:
        assert one != two
        (one / "a").write_text("1")
        (two / "b").write_text("2")
    assert [path.name for path in (tmp_path / "x").iterdir()] == ["a"], "the last one to finish wins as a whole"
    assert list(tmp_path.iterdir()) == [tmp_path / "x"]


def test_writers_remove_what_killed_ones_left(tmp_path: Path) -> None:
    (tmp_path / ".a.txt.part").write_text("half")
    (tmp_path / ".a.txt.1.part").mkdir()
    (tmp_path / ".b.txt.part").write_text("of another file")
    files.write_text(tmp_path / "a.txt", "whole")
    assert {path.name for path in tmp_path.iterdir()} == {"a.txt", ".b.txt.part"}
    (tmp_path / ".model.part").mkdir()
    (tmp_path / ".model.part" / "old").write_text("half")
    with files.new_folder(tmp_path / "model") as part:
        (part / "new").write_text("whole")
    assert [path.name for path in (tmp_path / "model").iterdir()] == ["new"]
    assert not (tmp_path / ".model.part").exists()


def test_writers_leave_the_temporary_file_of_a_living_process(tmp_path: Path) -> None:
    part = tmp_path / ".a.txt.part"
    script = (
        "import fcntl, sys; f = open(sys.argv[1], 'w'); fcntl.flock(f, fcntl.LOCK_EX); print(1, flush=True); input()"
    )
    with subprocess.Popen(
        [sys.executable, "-c", script, str(part)], stdin=subprocess.PIPE, stdout=subprocess.PIPE
    ) as other:
        assert other.stdout is not None and other.stdout.readline()
        files.write_text(tmp_path / "a.txt", "whole")
        assert part.exists()
        other.communicate(b"\n")
    files.write_text(tmp_path / "a.txt", "again")
    assert list(tmp_path.iterdir()) == [tmp_path / "a.txt"]


def test_write_bytes_rejects_what_is_not_a_file_and_follows_links(tmp_path: Path) -> None:
    """A device must not be replaced by a file, nor a link by a copy."""
    for target in (Path(os.devnull), tmp_path, Path()):
        with pytest.raises(UserError, match="is not a file"):
            files.write_text(target, "x")
    (tmp_path / "link").symlink_to("target")
    files.write_text(tmp_path / "link", "x")
    assert (tmp_path / "link").is_symlink() and (tmp_path / "target").read_text() == "x"
    long = tmp_path / ("ä" * 120 + ".txt")
    files.write_text(long, "a name of 244 bytes")
    assert long.is_file()


@pytest.mark.parametrize(
    "error",
    [
        OSError(errno.ENOSPC, "No space left on device"),
        RuntimeError("Error while serializing: I/O error: No space left on device (os error 28)"),
        RuntimeError("[enforce fail at inline_container.cc] PytorchStreamWriter failed writing file"),
    ],
)
def test_full_disk_is_one_sentence_wherever_it_is_met(tmp_path: Path, error: Exception) -> None:
    with pytest.raises(Failure, match=r"The disk is full: model could not be written"):  # noqa: SIM117
        with files.new_folder(tmp_path / "model"):
            raise error
    assert list(tmp_path.iterdir()) == []


def test_lock_lets_one_writer_in_and_vanishes(tmp_path: Path) -> None:
    with files.lock(tmp_path / "out"):
        with pytest.raises(UserError, match="Another di4c is writing"), files.lock(tmp_path / "out"):
            pass
        assert files.is_leftover(".lock")
    assert list((tmp_path / "out").iterdir()) == []
    (tmp_path / "out" / ".lock").touch()  # of a killed process
    with files.lock(tmp_path / "out"):
        pass


def test_equal_tensors_give_equal_bytes(tmp_path: Path) -> None:
    """The library orders metadata by a hash that differs from call to call."""
    import torch
    from safetensors import safe_open

    metadata = {f"key{number}": "wért" for number in range(8)}
    for number in range(4):
        model_folder.save_tensors({"b": torch.ones(3), "a": torch.zeros(2)}, tmp_path / str(number), metadata)
    assert len({(tmp_path / str(number)).read_bytes() for number in range(4)}) == 1
    with safe_open(tmp_path / "0", framework="pt") as file:
        assert file.metadata() == metadata and torch.equal(file.get_tensor("b"), torch.ones(3))


def test_write_bytes_replaces_a_link_to_itself(tmp_path: Path) -> None:
    path = tmp_path / "a.txt"
    path.symlink_to(path.name)
    files.write_text(path, "new")
    assert path.read_text() == "new" and not path.is_symlink()
