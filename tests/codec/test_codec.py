"""Ids to pictures and text."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pytest
import torch
from PIL import Image

from di4c_cli import codec
from di4c_cli.codec.grid import image_grid, save_grid
from di4c_cli.errors import UserError


def test_pixel_codec_spans_black_to_white() -> None:
    grey = codec.build({"type": "pixels", "shape": [1, 2, 2], "levels": 8})
    assert grey.decode(torch.tensor([[0, 7, 3, 4]])).tolist() == [[[0, 255], [109, 146]]]
    colour = codec.build({"type": "pixels", "shape": [3, 1, 2], "levels": 256})
    assert colour.decode(torch.arange(6)[None])[0].tolist() == [[[0, 2, 4], [1, 3, 5]]]


def test_text_codec_goes_both_ways_and_shows_masks() -> None:
    text = codec.build({"type": "text", "asset": "text-units.json"})
    ids = text.encode("My fellow Americans, the state of the union is strong.")
    assert text.decode(torch.tensor([ids])) == ["my fellow americans, the state of the union is strong."]
    masked = torch.tensor([[ids[0], 1500, *ids[1:3]]])
    assert text.decode(masked) == ["my [MASK] fellow americans"]


def test_plain_codec_decodes_ids_as_numbers() -> None:
    assert codec.build({}).decode(torch.tensor([[1, 2]])) == ["1 2"]
    with pytest.raises(UserError, match="no text"):
        codec.build({}).encode("hello")


@pytest.mark.parametrize("name", ["../secret", "/etc/passwd", "", "a/b", "..", ".key", "a\0b"])
def test_codec_file_names_cannot_leave_the_folder(name: str, tmp_path: Path) -> None:
    with pytest.raises(UserError, match="not a plain name"):
        codec.build({"type": "text", "file": name}, tmp_path)


@pytest.mark.parametrize("shape", [None, "888", 8, [8, 8], [1, 8, -8], [1, 8, 8.0], [1, 8, "8"], [1, 8, True], []])
def test_codec_build_rejects_odd_shapes(shape: object) -> None:
    with pytest.raises(UserError, match="image shape or number of levels is impossible"):
        codec.build({"type": "pixels", "shape": shape, "levels": 8})


def test_codec_build_names_missing_and_broken_files(tmp_path: Path) -> None:
    with pytest.raises(UserError, match="missing"):
        codec.build({"type": "text", "file": "tokenizer.json"}, tmp_path)
    (tmp_path / "tokenizer.json").write_text("{}")
    with pytest.raises(UserError, match="cannot be read"):
        codec.build({"type": "text", "file": "tokenizer.json"}, tmp_path)
    with pytest.raises(UserError, match="Unknown codec"):
        codec.build({"type": "audio"})


def test_image_grid_places_every_image(tmp_path: Path) -> None:
    images = np.zeros((5, 2, 2), np.uint8)
    images[:, 0, 0] = [10, 20, 30, 40, 50]
    sheet = np.asarray(image_grid(images, columns=2, scale=1))
    assert sheet.shape == (3 * 4 + 2, 2 * 4 + 2, 3)
    assert {10, 20, 30, 40, 50} <= set(sheet[..., 0].flatten().tolist())
    save_grid(np.zeros((3, 4, 4, 3), np.uint8), tmp_path / "deep" / "a.png")
    assert Image.open(tmp_path / "deep" / "a.png").size[0] > 4
    assert list((tmp_path / "deep").iterdir()) == [tmp_path / "deep" / "a.png"]
