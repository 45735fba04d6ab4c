"""Nothing from a checkpoint is ever executed, and nothing in it can exhaust the machine."""

from __future__ import annotations

import io
import os
import pickle
import re
import shutil
import struct
import zipfile
from collections import OrderedDict
from pathlib import Path
from typing import Any

import pytest
import torch
from typer.testing import CliRunner

from di4c_cli import load
from di4c_cli.cli.app import app
from di4c_cli.errors import UserError
from di4c_cli.teacher import pickles

ROOT = Path(__file__).parents[2]


class Command:
    """Unpickled by an ordinary reader, this runs a shell command."""

    def __init__(self, marker: Path) -> None:
        self.marker = marker

    def __reduce__(self) -> tuple[Any, ...]:
        return os.system, (f"touch '{self.marker}'",)


class Writer(Command):
    """The same with nothing but a built-in."""

    def __reduce__(self) -> tuple[Any, ...]:
        return exec, (f"open({str(self.marker)!r}, 'w')",)


def zip_file(tree: Any, path: Path) -> None:
    torch.save(tree, path)


def legacy_file(tree: Any, path: Path) -> None:
    torch.save(tree, path, _use_new_zipfile_serialization=False)


def plain_pickle(protocol: int) -> Any:
    def write(tree: Any, path: Path) -> None:
        path.write_bytes(pickle.dumps(tree, protocol))

    return write


WRITERS = {"zip": zip_file, "legacy": legacy_file} | {f"pickle {n}": plain_pickle(n) for n in (0, 1, 2, 3, 4, 5)}


@pytest.mark.slow
@pytest.mark.parametrize("ending", [".pt", ".pth", ".ckpt", ".bin", ".safetensors"])
@pytest.mark.parametrize("layout", WRITERS)
@pytest.mark.parametrize("payload", [Command, Writer])
def test_pickles_that_would_run_code_are_rejected(
    golden: Path, tmp_path: Path, layout: str, ending: str, payload: type[Command]
) -> None:
    marker = tmp_path / "executed"
    tree = torch.load(golden / "maskgit" / "MaskGIT_ImageNet_256.pth", weights_only=True)
    path = tmp_path / f"model{ending}"
    WRITERS[layout](tree | {"iter": payload(marker)}, path)
    result = CliRunner().invoke(app, ["convert", str(path), str(tmp_path / "out"), "--heads", "4"])
    assert result.exit_code == 2 and len(result.stderr.strip().splitlines()) == 1
    assert not marker.exists() and not (tmp_path / "out").exists()
    if not layout.startswith("pickle 0") and not layout.startswith("pickle 1"):
        assert "asks for code to be run" in result.stderr
    pickle.loads(pickle.dumps(payload(marker)))  # the payload does work when unpickled by an ordinary reader
    assert marker.exists()


def test_pickles_with_hidden_payloads_are_rejected(golden: Path, tmp_path: Path) -> None:
    marker = tmp_path / "executed"
    tree = torch.load(golden / "sdtt_di4c_student" / "last.ckpt", weights_only=True)
    tree["state_dict"]["backbone.vocab_embed.embedding"] = OrderedDict(a=[Command(marker)])
    torch.save(tree, tmp_path / "last.ckpt")
    with pytest.raises(UserError, match=r"posix\.system|nt\.system"):
        load(str(tmp_path))
    assert not marker.exists()


@pytest.mark.parametrize("program", [b"c__builtin__\neval\n(V1\ntR.", b"cbuiltins\nbytearray\n(I1000000000000\ntR."])
def test_pickles_with_a_crafted_table_of_contents_are_rejected(tmp_path: Path, program: bytes) -> None:
    """Also what torch itself would let pass: a reader asked for 10^12 bytes."""
    path = tmp_path / "model.pt"
    with zipfile.ZipFile(path, "w") as archive:
        archive.writestr("archive/data.pkl", program)
        archive.writestr("archive/version", "3\n")
    with pytest.raises(UserError, match="asks for code to be run"):
        pickles.read_pickle(path)


def test_pickles_of_both_layouts_load(golden: Path, tmp_path: Path) -> None:
    tree = torch.load(golden / "maskgit" / "MaskGIT_ImageNet_256.pth", weights_only=True)
    for name, write in (("zip", zip_file), ("legacy", legacy_file)):
        write(tree, tmp_path / name)
        assert load(str(tmp_path / name), heads=4, codes=40).config.labels == 7


def test_pickles_that_are_zip_bombs_are_rejected(golden: Path, tmp_path: Path) -> None:
    path = tmp_path / "model.pt"
    with zipfile.ZipFile(path, "w", zipfile.ZIP_DEFLATED) as archive:
        archive.writestr("archive/data.pkl", pickle.dumps({}, 2))
        archive.writestr("archive/data/0", bytes(10**8))
    assert path.stat().st_size < 200_000
    with pytest.raises(UserError, match="unpack to more than it holds"):
        pickles.read_pickle(path)


def test_pickles_with_overlapping_records_are_rejected(tmp_path: Path) -> None:
    """Stored records that share their bytes: the archive claims a multiple of its size."""
    buffer = io.BytesIO()
    with zipfile.ZipFile(buffer, "w") as archive:
        archive.writestr("archive/data.pkl", pickle.dumps({}, 2))
        archive.writestr("archive/data/0", os.urandom(10_000))
    content = bytearray(buffer.getvalue())
    end = content.rindex(b"PK\x05\x06")
    start = struct.unpack("<I", content[end + 16 : end + 20])[0]
    directory = bytes(content[start:end])
    record = directory[directory.rindex(b"PK\x01\x02") :]
    many = directory + record * 500
    tail = bytearray(content[end:])
    struct.pack_into("<HH", tail, 8, 502, 502)
    struct.pack_into("<I", tail, 12, len(many))
    path = tmp_path / "model.pt"
    path.write_bytes(bytes(content[:start]) + many + bytes(tail))
    with pytest.raises(UserError, match="unpack to more than it holds"):
        pickles.read_pickle(path)


def test_load_rejects_expanded_tensors(golden: Path, tmp_path: Path) -> None:
    tree = torch.load(golden / "maskgit" / "MaskGIT_ImageNet_256.pth", weights_only=True)
    tree["model_state_dict"]["tok_emb.weight"] = torch.zeros(1).expand(10**6, 10**6)
    torch.save(tree, tmp_path / "x.pth")
    with pytest.raises(UserError, match="claims more values than are stored"):
        load(str(tmp_path / "x.pth"), heads=4, codes=40)


def test_yaml_configurations_cannot_build_objects(golden: Path, tmp_path: Path) -> None:
    folder = tmp_path / "teacher"
    shutil.copytree(golden / "tauldr" / "teacher", folder)
    marker = tmp_path / "executed"
    config = folder / "config" / "config_001.yaml"
    config.chmod(0o644)
    config.write_text(f"!!python/object/apply:os.system ['touch {marker}']\n")
    with pytest.raises(UserError):
        load(str(folder))
    assert not marker.exists()


def test_package_never_runs_remote_code() -> None:
    """Where transformers loads something, remote code is refused outright; no torch.load could run code."""
    loads = []
    for path in (ROOT / "di4c_cli").rglob("*.py"):
        text = path.read_text(encoding="utf-8")
        said = re.findall(r"trust_remote_code\W+(\w+)", text)
        assert set(said) <= {"False"}, path
        assert len(said) == text.count("transformers.Auto") == text.count(".from_pretrained("), path
        loads += said
        for line in text.splitlines():
            assert "torch.load(" not in line or "weights_only=True" in line, path
            assert "pickle.load" not in line and "weights_only=False" not in line, path
    assert len(loads) == 2, "a model and a tokenizer"


def test_archive_of_several_disks_is_rejected(tmp_path: Path) -> None:
    """Python's own test for archives raises an error of its own on this record."""
    path = tmp_path / "model.pt"
    torch.save({"a": torch.zeros(3)}, path)
    content = path.read_bytes()
    place = content.rindex(b"PK\x06\x07") + 16  # number of disks in the locator of the 64-bit directory
    path.write_bytes(content[:place] + b"\x07\0\0\0" + content[place + 4 :])
    with pytest.raises(UserError, match=r"model\.pt is damaged: .*multiple disks"):
        pickles.read_pickle(path)
