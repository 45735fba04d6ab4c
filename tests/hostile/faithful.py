"""Valid files in every form through the readers: what is read is what was written, or the file is refused."""

from __future__ import annotations

import gzip
import json
import random
from pathlib import Path

import numpy as np
import pyarrow
import pyarrow.parquet
from PIL import Image

from di4c_cli.data import text
from di4c_cli.errors import UserError
from di4c_cli.foreign.arrays import ArrayArchive, as_integers, open_npy
from di4c_cli.foreign.images import open_image
from tests.hostile.originals import MODES, picture

FORMATS = {"PNG": ".png", "TIFF": ".tiff", "BMP": ".bmp", "GIF": ".gif", "WEBP": ".webp"}
LETTERS = "abc λ字🙂\t\n\r\u2028é\u0301"
REFUSED_MODES = ("I", "F")


def check(place: Path, rng: random.Random) -> tuple[str, list[str]]:
    """What was tried, and what was read otherwise than it was written."""
    way = rng.choice([_image, _image, _texts, _array, _integers])
    try:
        return way(place, rng)
    except UserError as error:
        return f"{way.__name__}: {error}", [f"a valid file was refused: {error}"]


def _image(place: Path, rng: random.Random) -> tuple[str, list[str]]:
    """An image in any mode and lossless format against Pillow's own pixels, weighted by hand."""
    mode, (kind, suffix) = rng.choice(MODES), rng.choice(sorted(FORMATS.items()))
    image = picture(mode, rng.choice([1, 3, 8, 33]), np.random.default_rng(rng.randrange(2**32)))
    path = place / f"image{suffix}"
    story = f"{mode} as {kind}"
    try:
        image.save(path, kind, **({"lossless": True, "exact": True} if kind == "WEBP" else {}))
    except Exception:
        return f"{story}: cannot be written", []
    with Image.open(path) as stored:
        stored.load()
        pixels, held, depth = np.asarray(stored), stored.mode, stored
        expected = _expected(depth, held, pixels)
    try:
        found = open_image(path, channels=3)
    except UserError:
        return story, [] if expected is None else [f"{story}: refused"]
    if expected is None:
        return story, [f"{story}: pixels of mode {held} were accepted"]
    wrong = np.abs(found.astype(int) - expected).max()
    return story, [f"{story}: off by {wrong}"] if wrong > 1 else []


def _expected(image: Image.Image, mode: str, pixels: np.ndarray) -> np.ndarray | None:
    """RGB by arithmetic; None where a refusal is right."""
    if mode.startswith("I;16") or (mode == "I" and image.format == "PNG"):
        return np.repeat(np.round(pixels.astype(float) / 65535 * 255)[..., None], 3, -1)
    if mode in REFUSED_MODES:
        return None
    if mode == "1":
        return np.repeat(pixels.astype(int)[..., None] * 255, 3, -1)
    if mode == "L" and "transparency" not in image.info:
        return np.repeat(pixels.astype(int)[..., None], 3, -1)
    layers = np.asarray(image.convert("RGBA")).astype(float)
    alpha = layers[..., 3:] / 255
    return np.round(layers[..., :3] * alpha + 255 * (1 - alpha))


def _texts(place: Path, rng: random.Random) -> tuple[str, list[str]]:
    """Documents as text, JSONL and Parquet, compressed or not."""
    texts = ["".join(rng.choices(LETTERS, k=rng.choice([1, 5, 300]))) for _ in range(rng.choice([1, 4, 30]))]
    kind = rng.choice([".txt", ".jsonl", ".txt.gz", ".jsonl.gz", ".parquet"])
    path = place / f"corpus{kind}"
    content = "\n".join(texts)
    if kind == ".parquet":
        sizes = {"row_group_size": rng.choice([1, 3, 100])}
        pyarrow.parquet.write_table(pyarrow.table({"text": texts}), path, **sizes)
    else:
        if ".jsonl" in kind:
            content = "\n".join(json.dumps({"text": one}, ensure_ascii=rng.random() < 0.5) for one in texts)
        else:
            texts = [content]
        raw = content.encode()
        path.write_bytes(gzip.compress(raw) if kind.endswith(".gz") else raw)
    found = [one if isinstance(one, str) else "".join(one) for one in text.documents(path)]
    same = [a.strip() == b.strip() for a, b in zip(found, texts, strict=False)]
    kept = [one for one in texts if one.strip()]
    wrong = [one for one in found if one.strip()] != kept and not (len(found) == len(texts) and all(same))
    return kind, [f"{kind}: {texts!r:.80} became {found!r:.80}"] if wrong else []


def _array(place: Path, rng: random.Random) -> tuple[str, list[str]]:
    """Arrays of every number type, byte order and layout."""
    kind = rng.choice(["u1", "i1", "<u2", ">u2", "<i4", ">i4", "<i8", ">u8", "<f2", "<f4", ">f8", "b1"])
    shape = rng.choice([(7,), (24, 8, 8), (5, 3, 2), (1, 1), (300, 17)])
    numbers = np.random.default_rng(rng.randrange(2**32))
    array = (numbers.random(shape) * 200 - 60 * ("u" not in kind)).astype(kind)
    array = np.asfortranarray(array) if rng.random() < 0.4 else array
    if rng.random() < 0.5:
        np.save(place / "a.npy", array)
        opened = open_npy(place / "a.npy")
        size = rng.choice([1, 2, len(array)])
        found = np.concatenate([opened[start : min(len(array), start + size)] for start in range(0, len(array), size)])
    else:
        (np.savez if rng.random() < 0.5 else np.savez_compressed)(place / "a.npz", x=array)
        with ArrayArchive(place / "a.npz") as archive:
            found = archive.read("x")
    same = found.shape == array.shape and np.array_equal(found, array)
    return f"{kind} {shape}", [] if same else [f"{kind} {shape}: other numbers"]


def _integers(place: Path, rng: random.Random) -> tuple[str, list[str]]:
    """Labels and ids at the edges of their types: the same number, or a refusal of what int64 cannot hold."""
    kind = rng.choice(["u1", "i1", "<u2", ">u2", "<u4", "<i4", "<u8", ">i8"])
    info = np.iinfo(kind)
    values = [info.min, info.max, 0, 1, rng.randrange(info.min, info.max)]
    array = np.asarray(values, dtype=kind)
    try:
        found = as_integers(array, "labels")
    except UserError:
        return kind, [] if max(values) > np.iinfo(np.int64).max else [f"{kind}: refused"]
    return kind, [] if [int(one) for one in found] == values else [f"{kind}: {values} became {found.tolist()}"]
