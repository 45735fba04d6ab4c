"""Arrays of any origin: sizes are checked before anything is read, and a file that is cut gives a sentence."""

from __future__ import annotations

import io
import json
import random
import zipfile
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from di4c_cli.data import cache, images
from di4c_cli.data.source import find_items
from di4c_cli.errors import Failure, UserError
from di4c_cli.evaluation.sample_files import image_batches
from di4c_cli.foreign import arrays
from di4c_cli.foreign.arrays import ArrayArchive, ArrayHeader, as_integers, open_npy
from di4c_cli.metric.reference import FeatureReference
from tests.helpers.data_models import gpt2_model, pixel_model, text_model

IMAGES = np.random.default_rng(0).integers(0, 256, (4, 32, 32, 3), dtype=np.uint8)


def header(shape: tuple[int, ...], dtype: str = "|u1") -> bytes:
    buffer = io.BytesIO()
    np.lib.format.write_array_header_1_0(buffer, {"descr": dtype, "fortran_order": False, "shape": shape})
    return buffer.getvalue()


@pytest.mark.parametrize("order", ["C", "F"])
@pytest.mark.parametrize("dtype", ["u1", "<i8", ">u2", "<f4"])
def test_open_npy_reads_rows_as_numpy_does(tmp_path: Path, dtype: str, order: str) -> None:
    whole = np.asarray(np.arange(60).reshape(5, 4, 3), dtype, order=order)  # type: ignore[call-overload]
    np.save(tmp_path / "a.npy", whole)
    found = open_npy(tmp_path / "a.npy")
    for rows in (slice(0, 5), slice(1, 3), slice(4, 9), slice(3, 3)):
        np.testing.assert_array_equal(found[rows], whole[rows])
    np.testing.assert_array_equal(found.flat()[7:20], whole.reshape(-1)[7:20])


@pytest.mark.parametrize("dtype", ["O", "<c8", "<M8[s]", "V4", "<U3"])
def test_open_npy_rejects_other_kinds_of_values(tmp_path: Path, dtype: str) -> None:
    (tmp_path / "a.npy").write_bytes(header((4,), dtype if dtype != "O" else "|O") + bytes(100))
    with pytest.raises(UserError, match="which di4c does not read"):
        open_npy(tmp_path / "a.npy")


def test_open_npy_compares_the_header_with_the_file(tmp_path: Path) -> None:
    (tmp_path / "a.npy").write_bytes(header((10**12,)) + bytes(100))
    with pytest.raises(UserError, match=r"its header promises 931 GB"):
        open_npy(tmp_path / "a.npy")


def test_array_that_is_cut_under_a_run_gives_a_sentence(tmp_path: Path) -> None:
    path = tmp_path / "ids.npy"
    np.save(path, np.zeros(80_000, np.uint16))
    items = find_items(str(path), text_model(length=8))
    items.rows([9_000])
    with path.open("r+b") as file:
        file.truncate(4096)
    with pytest.raises(Failure, match=r"ids\.npy became shorter"):
        items.rows([9_000])
    path.unlink()
    with pytest.raises(Failure, match="cannot be read any more"):
        items.rows([0])


def bomb(path: Path, size: int, name: str = "x.npy", method: int = zipfile.ZIP_DEFLATED) -> Path:
    """An archive with `size` zeros in one array."""
    with zipfile.ZipFile(path, "w", method) as archive, archive.open(name, "w", force_zip64=True) as member:
        member.write(header((size // 3072, 32, 32, 3)))
        for _ in range(0, size, 2**24):
            member.write(bytes(2**24))
    return path


def test_archive_rejects_bombs_by_their_stated_size(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(arrays, "FREE_BYTES", 2**24)
    path = bomb(tmp_path / "a.npz", 48 * 2**20)
    assert path.stat().st_size < 2**17
    with pytest.raises(UserError, match="more than 100 to 1"):
        find_items(str(path), pixel_model())
    with pytest.raises(UserError, match="more than 100 to 1"):
        list(image_batches(path))
    monkeypatch.setattr(arrays, "in_memory_limit", lambda: 2**20)
    with pytest.raises(UserError, match="takes 48 MB, more than the 1 MB that di4c reads at once"):
        find_items(str(path), pixel_model())


def test_archive_limits_take_a_million_images() -> None:
    million = ArrayHeader(np.dtype(np.uint8), (10**6, 32, 32, 3), False, 128)
    million.check_fits("x", 8 * 2**30 // 2)  # on a machine of 8 GB
    samples = ArrayHeader(np.dtype(np.uint8), (50_000, 256, 256, 3), False, 128)
    samples.check_fits("x", 32 * 2**30 // 2)


def test_archive_rejects_members_that_lie_and_other_compression(tmp_path: Path) -> None:
    for name, content in {"cut": header((500, 32, 32, 3)) + bytes(10), "words": b"no array"}.items():
        with zipfile.ZipFile(tmp_path / f"{name}.npz", "w") as archive:
            archive.writestr("x.npy", content)
    with pytest.raises(UserError, match="cut off"):
        find_items(str(tmp_path / "cut.npz"), pixel_model())
    with pytest.raises(UserError, match="not a readable array"):
        find_items(str(tmp_path / "words.npz"), pixel_model())
    with pytest.raises(UserError, match="numpy does not write"):
        find_items(str(bomb(tmp_path / "b.npz", 2**24, method=zipfile.ZIP_BZIP2)), pixel_model())


@pytest.mark.parametrize(
    ("label", "told"),
    [
        (np.array([0, 1, 2, 2**64 - 1], np.uint64), "18446744073709551615"),
        (np.array([0, 1, 2, -2]), "the label -2"),
        (np.array([0.0, 1, 2, 3]), "not integers"),
        (np.array([True, False, True, True]), "not integers"),
        (np.array([1, 2, 3]), "4 images and 3 labels"),
        (np.zeros((2, 2), int), "4 images and 4 labels"),
        (np.zeros(4, complex), "does not read"),
    ],
)
def test_labels_never_wrap_around(tmp_path: Path, label: np.ndarray, told: str) -> None:
    np.savez(tmp_path / "a.npz", x=IMAGES, label=label)
    with pytest.raises(UserError, match=told):
        find_items(str(tmp_path / "a.npz"), pixel_model())


@pytest.mark.parametrize("dtype", ["u1", ">u2", "<u2", ">i4", "u4", "u8", "i8", "i1"])
def test_images_and_labels_of_every_integer_type_are_read(tmp_path: Path, dtype: str) -> None:
    x = (IMAGES // 2).astype(dtype)
    np.savez(tmp_path / "a.npz", x=x, label=np.arange(4).astype(dtype))
    found, label = find_items(str(tmp_path / "a.npz"), pixel_model()).rows([3, 1])
    np.testing.assert_array_equal(found[0].reshape(3, 32, 32), x[3].transpose(2, 0, 1).astype(int))
    assert label is not None and label.tolist() == [3, 1]
    assert as_integers(np.zeros(0, np.uint64), "x").dtype == np.int64


def statistics(**changed: Any) -> dict[str, Any]:
    rows = np.random.default_rng(0).normal(size=(20, 3))
    centred = rows - rows.mean(0)
    provenance = {"name": "a", "network": "b", "digest": "c", "size": [8, 8]}
    whole = {"count": np.array(20), "mean": rows.mean(0), "scatter": centred.T @ centred, "features": rows}
    return {**whole, "provenance": np.array(json.dumps(provenance)), **changed}


ODD_STATISTICS: dict[str, dict[str, Any]] = {
    "not square": {"scatter": np.zeros((3, 2))},
    "complex": {"scatter": np.zeros((3, 3), complex)},
    "NaN": {"mean": np.array([0, np.nan, 0])},
    "infinity": {"features": np.full((20, 3), np.inf)},
    "flat": {"scatter": np.zeros(9)},
    "scalar": {"mean": np.array(1.0)},
    "wide": {"features": np.zeros((20, 4))},
    "empty": {"features": np.zeros((0, 3))},
    "negative count": {"count": np.array(-3)},
    "float count": {"count": np.array(20.5)},
    "list of counts": {"count": np.array([20, 20])},
    "negative variance": {"scatter": -np.eye(3)},
    "not symmetric": {"scatter": np.triu(np.ones((3, 3)))},
    "integers": {"mean": np.zeros(3, int)},
    "text": {"mean": np.array(["a", "b", "c"])},
    "odd provenance": {"provenance": np.array("[1, 2]")},
    "odd size": {"provenance": np.array('{"name": "a", "network": "b", "digest": "c", "size": 5}')},
    "number as provenance": {"provenance": np.array(3)},
}


def test_reference_statistics_are_read(tmp_path: Path) -> None:
    np.savez(tmp_path / "a.npz", **statistics())
    assert FeatureReference.load(tmp_path / "a.npz").count == 20


@pytest.mark.parametrize("odd", ODD_STATISTICS)
def test_reference_statistics_reject_odd_arrays(tmp_path: Path, odd: str) -> None:
    np.savez(tmp_path / "a.npz", **statistics(**ODD_STATISTICS[odd]))
    with pytest.raises(UserError) as caught:
        FeatureReference.load(tmp_path / "a.npz")
    assert "a.npz" in str(caught.value) and "\n" not in str(caught.value)


def test_token_cache_that_was_cut_or_altered_is_written_again(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("DI4C_CACHE", str(tmp_path / "cache"))
    (tmp_path / "a.txt").write_text("some words and more of them " * 200)
    whole = find_items(str(tmp_path / "a.txt"), gpt2_model())
    expected = whole.rows(list(range(len(whole))))[0]
    (ids,) = (tmp_path / "cache").rglob("ids.bin")
    content = ids.read_bytes()
    for damaged in (content[:100], b"\x01\x00" + content[2:], b""):
        ids.write_bytes(damaged)
        again = find_items(str(tmp_path / "a.txt"), gpt2_model())
        assert len(again) == len(whole)
        assert (again.rows(list(range(len(again))))[0] == expected).all()


def test_cached_array_that_was_cut_or_altered_is_not_trusted(tmp_path: Path) -> None:
    path = tmp_path / "a.npy"
    cache.write_array(path, np.arange(50))
    found = cache.open_array(path)
    assert found is not None and found[3:5].tolist() == [3, 4]
    np.testing.assert_array_equal(np.load(path), np.arange(50))
    whole = path.read_bytes()
    for damaged in (whole[:-9], whole[:200] + b"\x07" + whole[201:], b""):
        path.write_bytes(damaged)
        assert cache.open_array(path) is None


@pytest.mark.parametrize("kind", ["npy", "npz"])
def test_arrays_are_read_or_rejected_after_every_mutation(tmp_path: Path, kind: str) -> None:
    chance, path = random.Random(kind), tmp_path / f"a.{kind}"
    np.save(path, IMAGES[:2]) if kind == "npy" else np.savez_compressed(path, x=IMAGES[:2], label=[1, 2])
    whole = path.read_bytes()
    for _ in range(120):
        raw = bytearray(whole)
        for _ in range(chance.randint(1, 4)):
            place = chance.randrange(len(raw) if chance.random() < 0.5 else min(130, len(raw)))
            raw[-place if chance.random() < 0.3 else place] = chance.randrange(256)
        path.write_bytes(raw[: chance.randint(1, len(raw))] if chance.random() < 0.2 else raw)
        try:
            if kind == "npy":
                list(image_batches(path))
            else:
                images.open_npz(path, (3, 32, 32), 3072, 256)
        except UserError as error:
            assert "\n" not in str(error)


def test_archive_names_arrays_that_are_missing(tmp_path: Path) -> None:
    np.savez(tmp_path / "a.npz", y=np.zeros(3))
    with ArrayArchive(tmp_path / "a.npz") as file, pytest.raises(UserError, match="has no array 'x'"):
        file.read("x")
    np.savez(tmp_path / "b.npz", x=np.zeros((0, 32, 32, 3), np.uint8))
    assert len(find_items(str(tmp_path / "b.npz"), pixel_model())) == 0
