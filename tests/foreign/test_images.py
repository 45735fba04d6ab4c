"""Images of every mode that Pillow can give: converted right, or rejected in one sentence."""

from __future__ import annotations

import os
import random
import struct
import zlib
from pathlib import Path

import numpy as np
import pytest
from PIL import Image

from di4c_cli.data.source import find_items
from di4c_cli.errors import UserError
from di4c_cli.evaluation.sample_files import image_batches
from di4c_cli.foreign import images
from di4c_cli.foreign.images import open_image
from tests.helpers.data_models import pixel_model

CHANCE = np.random.default_rng(0)
GREYS = CHANCE.integers(0, 256, (5, 7), dtype=np.uint8)
COLOURS = CHANCE.integers(0, 256, (5, 7, 3), dtype=np.uint8)
DEEP = CHANCE.integers(0, 2**16, (5, 7), dtype=np.uint16)


def saved(image: Image.Image, path: Path, kind: str = "PNG", **options: object) -> Path:
    image.save(path, kind, **options)
    return path


def test_open_image_rounds_16_bit_greys_instead_of_saturating(tmp_path: Path) -> None:
    levels = np.array([[0, 1000, 2000, 128, 129, 65535]], np.uint16)
    path = saved(Image.fromarray(levels), tmp_path / "a.png")
    assert open_image(path).tolist() == [[0, 4, 8, 0, 1, 255]]
    ramp = np.arange(2**16, dtype=np.uint16).reshape(256, 256)
    found = open_image(saved(Image.fromarray(ramp), tmp_path / "ramp.png"), channels=3)
    np.testing.assert_array_equal(found[..., 0], np.rint(ramp / 257).astype(np.uint8))


@pytest.mark.parametrize("order", ["<u2", ">u2"])
def test_open_image_reads_16_bit_greys_of_both_byte_orders(tmp_path: Path, order: str) -> None:
    path = saved(Image.fromarray(DEEP.astype(order)), tmp_path / "a.png", "TIFF")
    np.testing.assert_array_equal(open_image(path), np.rint(DEEP / 257).astype(np.uint8))


def test_16_bit_greys_reach_data_samples_and_references_unsaturated(tmp_path: Path) -> None:
    saved(Image.fromarray(np.array([[0, 1000], [2000, 65535]], np.uint16)), tmp_path / "a.png")
    assert next(image_batches(tmp_path)).tolist() == [[[0, 4], [8, 255]]]
    x, _ = find_items(str(tmp_path), pixel_model((1, 2, 2), 256, None)).rows([0])
    assert x.tolist() == [[0, 4, 8, 255]]


def over_white(colour: np.ndarray, alpha: np.ndarray) -> np.ndarray:
    share = alpha.astype(float)[..., None] / 255 if colour.ndim == 3 else alpha.astype(float) / 255
    return colour * share + 255 * (1 - share)


@pytest.mark.parametrize(("mode", "colour"), [("LA", GREYS), ("RGBA", COLOURS)])
def test_open_image_places_transparent_images_on_white(tmp_path: Path, mode: str, colour: np.ndarray) -> None:
    alpha = CHANCE.integers(0, 256, (5, 7), dtype=np.uint8)
    alpha[0] = [0, 255, 0, 255, 0, 255, 0]
    image = Image.fromarray(colour)
    image.putalpha(Image.fromarray(alpha))
    assert image.mode == mode
    found = open_image(saved(image, tmp_path / "a.png"))
    assert found.shape == colour.shape
    assert np.abs(found - over_white(colour, alpha)).max() <= 1
    assert (found[0, ::2] == 255).all()


def test_open_image_reads_palettes_with_and_without_transparency(tmp_path: Path) -> None:
    image = Image.fromarray(np.array([[0, 1, 2]], np.uint8))
    image.putpalette([10, 20, 30, 40, 50, 60, 70, 80, 90])
    assert image.mode == "P"
    expected = [[[10, 20, 30], [40, 50, 60], [70, 80, 90]]]
    assert open_image(saved(image, tmp_path / "a.png")).tolist() == expected
    clear = saved(image, tmp_path / "b.png", transparency=1)
    assert open_image(clear).tolist() == [[[10, 20, 30], [255] * 3, [70, 80, 90]]]
    shades = saved(image, tmp_path / "c.png", transparency=bytes([255, 0, 255]))
    assert open_image(shades).tolist() == [[[10, 20, 30], [255] * 3, [70, 80, 90]]]
    key = saved(Image.fromarray(np.array([[5, 6]], np.uint8)), tmp_path / "d.png", transparency=6)
    assert open_image(key).tolist() == [[5, 255]]


def test_open_image_reads_bits_and_other_colour_spaces(tmp_path: Path) -> None:
    bits = Image.fromarray(np.array([[0, 255]], np.uint8)).convert("1")
    assert open_image(saved(bits, tmp_path / "a.png")).tolist() == [[0, 255]]
    plain = Image.new("RGB", (4, 3), (200, 100, 50))
    for mode, kind in (("CMYK", "TIFF"), ("CMYK", "JPEG"), ("YCbCr", "TIFF")):
        path = saved(plain.convert(mode), tmp_path / f"{mode}.png", kind)
        assert np.abs(open_image(path).astype(int) - [200, 100, 50]).max() <= 4, (mode, kind)
    assert open_image(saved(plain, tmp_path / "c.png"), channels=1).tolist() == [[124] * 4] * 3


@pytest.mark.parametrize("mode", ["I", "F", "LAB"])
def test_open_image_rejects_modes_without_a_defined_white(tmp_path: Path, mode: str) -> None:
    path = saved(Image.new(mode, (4, 3)), tmp_path / "a.png", "TIFF")
    with pytest.raises(UserError, match=rf"a\.png has pixels of mode {mode}"):
        open_image(path)


@pytest.mark.parametrize("kind", ["PNG", "GIF", "WEBP"])
def test_open_image_rejects_several_frames(tmp_path: Path, kind: str) -> None:
    frames = [Image.new("RGB", (4, 4), colour) for colour in ("red", "blue")]
    path = saved(frames[0], tmp_path / "a.png", kind, save_all=True, append_images=frames[1:])
    with pytest.raises(UserError, match="2 frames"):
        open_image(path)


def test_open_image_applies_exif_rotation(tmp_path: Path) -> None:
    exif = Image.Exif()
    exif[0x0112] = 6  # to be turned by 90 degrees clockwise
    found = open_image(saved(Image.fromarray(GREYS), tmp_path / "a.png", exif=exif))
    np.testing.assert_array_equal(found, np.rot90(GREYS, -1))
    deep = open_image(saved(Image.fromarray(DEEP), tmp_path / "b.png", exif=exif))
    np.testing.assert_array_equal(deep, np.rot90(np.rint(DEEP / 257).astype(np.uint8), -1))


def bomb(path: Path, width: int, height: int) -> Path:
    """A PNG that claims a size and holds almost nothing."""

    def chunk(name: bytes, body: bytes) -> bytes:
        return struct.pack(">I", len(body)) + name + body + struct.pack(">I", zlib.crc32(name + body))

    head = struct.pack(">IIBBBBB", width, height, 8, 2, 0, 0, 0)
    body = chunk(b"IHDR", head) + chunk(b"IDAT", zlib.compress(bytes(1000))) + chunk(b"IEND", b"")
    path.write_bytes(b"\x89PNG\r\n\x1a\n" + body)
    return path


@pytest.mark.parametrize("side", [8193, 12_000, 60_000])
def test_open_image_rejects_more_pixels_than_the_limit(tmp_path: Path, side: int) -> None:
    with pytest.raises(UserError, match=f"more than {images.MAX_PIXELS:,} pixels"):
        open_image(bomb(tmp_path / "a.png", side, side))


def test_pixel_limit_takes_legitimate_images() -> None:
    assert images.MAX_PIXELS >= 50_000 * 32 * 32  # all of CIFAR-10 on one sheet
    assert 12 * images.MAX_PIXELS < 2**30  # bytes while three RGBA copies exist


@pytest.mark.parametrize("kind", ["PNG", "JPEG", "WEBP", "BMP", "GIF", "TIFF"])
def test_open_image_reads_or_rejects_every_mutation(tmp_path: Path, kind: str) -> None:
    chance, path = random.Random(kind), tmp_path / "a.png"
    whole = saved(Image.fromarray(COLOURS), path, kind).read_bytes()
    for _ in range(60):
        raw = bytearray(whole)
        for _ in range(chance.randint(1, 4)):
            raw[chance.randrange(len(raw))] = chance.randrange(256)
        path.write_bytes(raw[: chance.randint(1, len(raw))] if chance.random() < 0.4 else raw)
        try:
            found = open_image(path)
        except UserError as error:
            assert "\n" not in str(error)
        else:
            assert found.dtype == np.uint8 and found.ndim in (2, 3)


def test_open_image_rejects_pipes_and_other_formats(tmp_path: Path) -> None:
    os.mkfifo(tmp_path / "a.png")
    with pytest.raises(UserError, match="is a pipe"):
        open_image(tmp_path / "a.png")
    (tmp_path / "b.png").write_text("%!PS-Adobe-3.0 EPSF-3.0\n%%BoundingBox: 0 0 10 10\n")
    with pytest.raises(UserError, match="not a readable image"):
        open_image(tmp_path / "b.png")
