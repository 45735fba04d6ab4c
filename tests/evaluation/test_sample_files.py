"""Files of images and texts."""

from __future__ import annotations

import json
from pathlib import Path

import numpy as np
import pytest
from PIL import Image

from di4c_cli.errors import UserError
from di4c_cli.evaluation.sample_files import image_batches, read_texts


def test_image_batches_reads_folders_and_arrays(tmp_path: Path) -> None:
    images = np.random.default_rng(0).integers(0, 256, size=(7, 5, 4)).astype(np.uint8)
    for number, image in enumerate(images):
        Image.fromarray(image).save(tmp_path / f"{number}.png")
    np.testing.assert_array_equal(np.concatenate(list(image_batches(tmp_path))), images)
    np.save(tmp_path / "a.npy", images)
    np.savez(tmp_path / "b.npz", images=images)
    for name in ("a.npy", "b.npz"):
        np.testing.assert_array_equal(np.concatenate(list(image_batches(tmp_path / name))), images)


def test_image_batches_rejects_different_sizes_and_other_files(tmp_path: Path) -> None:
    for number, size in enumerate((4, 5)):
        Image.new("L", (size, size)).save(tmp_path / f"{number}.png")
    with pytest.raises(UserError, match="different sizes"):
        list(image_batches(tmp_path))
    np.save(tmp_path / "floats.npy", np.zeros((3, 4, 4)))
    with pytest.raises(UserError, match="not uint8 images"):
        list(image_batches(tmp_path / "floats.npy"))
    (tmp_path / "words.npy").write_text("no array")
    with pytest.raises(UserError, match="not a readable array"):
        list(image_batches(tmp_path / "words.npy"))
    (tmp_path / "torn").mkdir()
    (tmp_path / "torn" / "a.png").write_bytes(b"\x89PNG")
    with pytest.raises(UserError, match="not a readable image"):
        list(image_batches(tmp_path / "torn"))


def test_read_texts_reads_line_by_line(tmp_path: Path) -> None:
    plain, objects = tmp_path / "a.txt", tmp_path / "a.jsonl"
    plain.write_text("one\n\n two \n")
    objects.write_text("\n".join(json.dumps({"text": text}) for text in ("one", "two\nlines")))
    assert read_texts(plain) == ["one", " two "]
    assert read_texts(objects) == ["one", "two\nlines"]
    objects.write_text('{"words": 1}')
    with pytest.raises(UserError, match="line 1"):
        read_texts(objects)


def test_image_batches_names_a_broken_picture(tmp_path: Path) -> None:
    """Pillow calls this a SyntaxError."""
    path = tmp_path / "torn.png"
    noise = np.random.default_rng(0).integers(0, 256, (300, 300), dtype=np.uint8)
    Image.fromarray(noise).save(path)
    first, second, *rest = path.read_bytes().split(b"IDAT")
    path.write_bytes(b"IDAT".join([first, second]) + bytes(4) + b"IDAT".join(rest))
    with pytest.raises(UserError, match=r"torn\.png is not a readable image"):
        list(image_batches(tmp_path))
