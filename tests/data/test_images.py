"""Pictures: folders, .npz, CIFAR-10 in both forms, and images encoded by a VQGAN."""

from __future__ import annotations

import json
from concurrent.futures import ThreadPoolExecutor
from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest
import torch
from PIL import Image

import di4c_cli
from di4c_cli.data import images
from di4c_cli.data.source import find_items, open_source
from di4c_cli.data.stream import Shuffled
from di4c_cli.errors import UserError
from di4c_cli.noise import Noise
from tests.helpers.data_models import data_spec, pixel_model, vq_model

CHANCE = np.random.default_rng(0)
PICTURES = CHANCE.integers(0, 256, (6, 32, 32, 3), dtype=np.uint8)
LABELS = [3, 1, 4, 1, 5, 9]


def flat(pictures: np.ndarray) -> torch.Tensor:
    return torch.from_numpy(pictures.transpose(0, 3, 1, 2).reshape(len(pictures), -1).astype(np.int64))


def class_folders(folder: Path, pictures: np.ndarray = PICTURES, per_class: int = 2) -> Path:
    for number, picture in enumerate(pictures):
        path = folder / f"class-{number // per_class}" / f"{number:03d}.png"
        path.parent.mkdir(parents=True, exist_ok=True)
        Image.fromarray(picture).save(path)
    return folder


def test_cifar_binary_and_sheets_give_the_same_data(tmp_path: Path) -> None:
    binary, sheets = tmp_path / "cifar-10-batches-bin", tmp_path / "sheets"
    binary.mkdir(), sheets.mkdir()
    for part in (0, 1):
        chosen = slice(3 * part, 3 * part + 3)
        records = np.concatenate([np.array(LABELS[chosen], np.uint8)[:, None], flat(PICTURES[chosen]).numpy()], 1)
        (binary / f"data_batch_{part + 1}.bin").write_bytes(records.astype(np.uint8).tobytes())
        Image.fromarray(PICTURES[chosen].reshape(3, 1024, 3)).save(sheets / f"data_batch_{part + 1}.png")
    (sheets / "train_lables.json").write_text(json.dumps(LABELS))
    for source in (tmp_path, binary, sheets):
        x, label = find_items(str(source), pixel_model()).rows(list(range(6)))
        assert torch.equal(x, flat(PICTURES))
        assert label is not None and label.tolist() == LABELS


def test_find_items_reads_class_folders_and_npz(tmp_path: Path) -> None:
    folder = class_folders(tmp_path / "images")
    x, label = find_items(str(folder), pixel_model()).rows([0, 3, 5])
    assert torch.equal(x, flat(PICTURES[[0, 3, 5]]))
    assert label is not None and label.tolist() == [0, 1, 2]
    mirrored, _ = find_items(str(folder), pixel_model()).rows([0], torch.tensor([True]))
    assert torch.equal(mirrored, flat(PICTURES[:1, :, ::-1]))
    np.savez(tmp_path / "data.npz", images=PICTURES, labels=LABELS)
    x, label = find_items(str(tmp_path / "data.npz"), pixel_model()).rows([4])
    assert torch.equal(x, flat(PICTURES[4:5])) and label is not None and label.tolist() == [5]


def test_find_items_quantises_images_to_the_teachers_levels(tmp_path: Path) -> None:
    grey = np.array([[[0, 255], [128, 36]]], np.uint8)
    np.savez(tmp_path / "data.npz", x=grey)
    model = pixel_model((1, 2, 2), 8, None)
    x, _ = find_items(str(tmp_path / "data.npz"), model).rows([0])
    assert x.tolist() == [[0, 7, 4, 1]]
    assert np.abs(model.decode(x).astype(int) - grey).max() <= 18


def refused(path: Path, model: object, *words: str) -> None:
    with pytest.raises(UserError) as caught:
        open_source(str(path), model, data_spec(model)).read(0, 6)  # type: ignore[arg-type]
    assert caught.value.exit_code == 2
    for word in words:
        assert word in str(caught.value)


def test_open_source_names_wrong_sizes_and_damaged_files(tmp_path: Path) -> None:
    folder = class_folders(tmp_path / "images")
    Image.fromarray(PICTURES[0, :30]).save(folder / "class-1" / "002.png")
    refused(folder, pixel_model(), "002.png is 32x30", "32x32")
    (folder / "class-1" / "002.png").write_bytes(b"not a picture")
    refused(folder, pixel_model(), "002.png is not a readable image")
    (tmp_path / "data_batch_1.bin").write_bytes(bytes(3073 + 10))
    refused(tmp_path, pixel_model(), "data_batch_1.bin is cut off in record 1")
    (tmp_path / "data_batch_1.bin").write_bytes(bytes([77]) + bytes(3072))
    refused(tmp_path, pixel_model(), "record 0 has the label 77")
    (tmp_path / "data_batch_1.bin").unlink()
    sheet = tmp_path / "data_batch_1.png"
    Image.fromarray(PICTURES[:3].reshape(3, 1024, 3)).save(sheet)
    for labels, told in (
        ([0, 1], "2 labels for 3 images"),
        ([0, 1, 10], "not a list of labels from 0 to 9"),
        ([0, 1, -1], "not a list"),
        ([0, 1, 2.0], "not a list"),
        ({"0": 1}, "not a list"),
    ):
        (tmp_path / "train_lables.json").write_text(json.dumps(labels))
        refused(tmp_path, pixel_model(), told)
    Image.fromarray(PICTURES[0]).save(sheet)
    refused(tmp_path, pixel_model(), "32 pixels wide instead of 1024")
    sheet.unlink()
    np.savez(tmp_path / "data.npz", x=PICTURES[:, :16])
    refused(tmp_path / "data.npz", pixel_model(), "record 0 is 16x32")
    (tmp_path / "torn.npz").write_bytes(b"PK\x03\x04")
    refused(tmp_path / "torn.npz", pixel_model(), "torn.npz is not a readable")
    (tmp_path / "empty").mkdir()
    refused(tmp_path / "empty", pixel_model(), "holds no samples")


def test_open_source_names_labels_beyond_the_teachers(tmp_path: Path) -> None:
    refused(class_folders(tmp_path), pixel_model(labels=2), "class-2", "label 2 is not below the teacher's 2 classes")


def test_vq_items_encode_class_folders_once(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    pictures = CHANCE.integers(0, 256, (6, 12, 8, 3), dtype=np.uint8)
    folder = class_folders(tmp_path / "images", pictures)
    model = vq_model()
    items = find_items(str(folder), model, mirrored=True)
    x, label = items.rows([5, 0], torch.tensor([False, True]))
    middle = torch.from_numpy(pictures[:, 2:10].transpose(0, 3, 1, 2).astype(np.float32)) / 127.5 - 1
    vqgan = model.codec.vqgan  # type: ignore[attr-defined]
    assert torch.equal(x[0], vqgan.encode(middle[5:6])[0])
    assert torch.equal(x[1], vqgan.encode(middle[0:1].flip(-1))[0])
    assert label is not None and label.tolist() == [2, 0]
    monkeypatch.setattr(images.VqItems, "_encode", lambda *_: pytest.fail("encoded again"))
    again, _ = find_items(str(folder), vq_model(), mirrored=True).rows([5, 0], torch.tensor([False, True]))
    assert torch.equal(again, x)


def encoded(items: images.VqItems, monkeypatch: pytest.MonkeyPatch) -> list[tuple[int, bool]]:
    """The images that are encoded from now on, with whether they are mirrored."""
    seen: list[tuple[int, bool]] = []
    encode = items._encode
    monkeypatch.setattr(items, "_encode", lambda wanted: seen.extend(wanted) or encode(wanted))
    return seen


@pytest.mark.parametrize("random_crop", [False, True])
def test_vq_stream_encodes_the_images_of_its_batches_only(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, random_crop: bool
) -> None:
    """The codes are those of the whole folder, encoded at once; an image is encoded when a batch first needs it."""
    folder = class_folders(tmp_path / "images", CHANCE.integers(0, 256, (8, 6, 4, 3), dtype=np.uint8))
    model = di4c_cli.load("fashion")
    source = open_source(str(folder), model, replace(data_spec(model, flip=True), random_crop=random_crop))
    assert isinstance(source, Shuffled) and isinstance(source.items, images.VqItems)
    seen = encoded(source.items, monkeypatch)
    vqgan = model.codec.vqgan  # type: ignore[attr-defined]
    places = Noise(0, list(range(8)), "crop").uniform("place", 2).tolist() if random_crop else [None] * 8
    squares = [images.load_square(path, 28, 1, place) for path, place in zip(source.items.paths, places, strict=True)]
    plain, mirrored = (vqgan.encode(torch.stack(side)) for side in (squares, [x.flip(-1) for x in squares]))
    used = {(0, False)}  # checked when the source was opened
    for start in (0, 3, 6, 3):
        batch = source.read(start, 3)
        items = [source.item(sample) for sample in batch.index]
        flips = (Noise(0, batch.index, "data/1").uniform("flip") < 0.5).tolist()
        assert batch.x0 is not None
        for code, item, flip in zip(batch.x0, items, flips, strict=True):
            assert torch.equal(code, (mirrored if flip else plain)[item])
        used |= set(zip(items, flips, strict=True))
        assert {(0, False), *seen} == used
    assert len(seen) == len(set(seen)), "encoded again"


def test_vq_items_encode_what_is_cut_or_altered_in_the_cache_again(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    folder = class_folders(tmp_path / "images", CHANCE.integers(0, 256, (4, 8, 8, 3), dtype=np.uint8))

    def opened() -> images.VqItems:
        items = find_items(str(folder), vq_model())
        assert isinstance(items, images.VqItems)
        return items

    wanted = opened().rows([0, 1, 2, 3])[0]
    path = opened().codes.path
    content = bytearray(path.read_bytes())
    row = len(content) // 4
    content[row + 9] ^= 1
    path.write_bytes(content[: 4 * row - 3])
    items = opened()
    seen = encoded(items, monkeypatch)
    for _ in range(2):
        assert torch.equal(items.rows([0, 1, 2, 3])[0], wanted)
    assert seen == [(1, False), (3, False)]
    assert torch.equal(opened().rows([3, 1])[0], wanted[[3, 1]])
    path.unlink()
    for _ in range(3):
        before = len(seen)
        assert torch.equal(items.rows([2, 0])[0], wanted[[2, 0]])
    assert len(seen) == before > 2, "encoded again after the file was deleted, and then kept"


def test_vq_items_are_read_by_threads_and_processes_at_once(tmp_path: Path) -> None:
    folder = class_folders(tmp_path / "images", CHANCE.integers(0, 256, (12, 8, 8, 3), dtype=np.uint8))
    items = [find_items(str(folder), vq_model()) for _ in range(2)]  # as two processes open them
    wanted = items[0].rows(list(range(12)))[0]
    items[0].codes.path.unlink()  # type: ignore[attr-defined]
    with ThreadPoolExecutor(4) as pool:
        reads = [(items[n % 2], [n % 12, (5 * n) % 12]) for n in range(48)]
        for (_, index), (found, _) in zip(reads, pool.map(lambda read: read[0].rows(read[1]), reads), strict=True):
            assert torch.equal(found, wanted[index])


def test_vq_items_cut_random_squares(tmp_path: Path) -> None:
    """One square of each image, anywhere along the longer side, in a cache of its own."""
    pictures = CHANCE.integers(0, 256, (12, 32, 8, 3), dtype=np.uint8)
    folder = class_folders(tmp_path / "images", pictures)
    for place, top in ((0.0, 0), (0.999, 24)):
        square = images.load_square(sorted(folder.rglob("*.png"))[0], 8, 3, [0.5, place])
        expected = pictures[0, top : top + 8].transpose(2, 0, 1).astype(np.float32) / 127.5 - 1
        assert torch.equal(square, torch.from_numpy(expected))
    centre, cut, again = (
        find_items(str(folder), vq_model(), random_crop=on).rows(list(range(12)))[0] for on in (False, True, True)
    )
    assert torch.equal(cut, again) and not torch.equal(cut, centre)


@pytest.mark.parametrize(
    ("label", "told"),
    [
        (np.array(["cat", "dog"]), "not integers"),
        (np.array([0.5, 1.0]), "not integers"),
        (np.array(1), "2 images and 1 labels"),
    ],
)
def test_npz_rejects_labels_that_are_not_integers(tmp_path: Path, label: np.ndarray, told: str) -> None:
    np.savez(tmp_path / "data.npz", x=PICTURES[:2], label=label)
    with pytest.raises(UserError, match=told):
        find_items(str(tmp_path / "data.npz"), pixel_model())


@pytest.mark.parametrize("levels", [4, 256, 1024])
def test_quantise_reaches_every_level_without_wrapping(tmp_path: Path, levels: int) -> None:
    ramp = np.arange(256, dtype=np.uint8).repeat(12).reshape(1, 32, 32, 3)
    Image.fromarray(ramp[0]).save(tmp_path / "ramp.png")
    np.savez(tmp_path / "ramp.npz", x=ramp)
    (tmp_path / "cifar").mkdir()
    Image.fromarray(ramp.reshape(1, 1024, 3)).save(tmp_path / "cifar" / "data_batch_1.png")
    (tmp_path / "folder").mkdir()
    (tmp_path / "ramp.png").rename(tmp_path / "folder" / "ramp.png")
    expected = torch.round(flat(ramp).double() * (levels - 1) / 255).long()
    for name in ("folder", "ramp.npz", "cifar"):
        x, label = find_items(str(tmp_path / name), pixel_model(levels=levels)).rows([0])
        assert torch.equal(x, expected), name
        assert label is None


def test_npz_rejects_values_above_255(tmp_path: Path) -> None:
    np.savez(tmp_path / "deep.npz", x=PICTURES.astype(np.uint16) * 256)
    with pytest.raises(UserError, match=r"outside 0\.\.255"):
        find_items(str(tmp_path / "deep.npz"), pixel_model(levels=16))
