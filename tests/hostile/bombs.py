"""Small files that ask for a lot: archives that grow, headers that claim terabytes, odd arrays, growing tokenizers."""

from __future__ import annotations

import gzip
import io
import json
import random
import struct
import zipfile
import zlib
from contextlib import suppress
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow
import pyarrow.parquet
from PIL import Image

from tests.hostile.mutations import CONTROLS, MARKUP, nested
from tests.hostile.originals import MODES, picture

ZEROS = bytes(2**20)


def bomb(path: Path, rng: random.Random) -> str:
    """The file as one that grows when it is read, in the format of its name."""
    kind = path.suffix
    if kind in (".npz", ".pth", ".pt", ".ckpt"):
        _zip_bomb(path, rng)
    elif kind == ".gz":
        with gzip.open(path, "wb", compresslevel=9) as out:
            for _ in range(rng.choice([1, 300, 1200])):
                out.write(ZEROS if rng.random() < 0.5 else b"a " * 2**19)
    elif kind == ".safetensors":
        shape, stop = rng.choice([([10**6, 10**6], 4 * 10**12), ([2**62, 4], 8), ([0], 0), ([], 4), ([-1], 4)])
        header = {rng.choice(["a", CONTROLS, "x" * 10**5]): {"dtype": "F32", "shape": shape, "data_offsets": [0, stop]}}
        header["__metadata__"] = rng.choice([{}, {"format": "pt"}, {CONTROLS: MARKUP}, "deep"])
        content = json.dumps(header).encode().replace(b'"deep"', b"[" * 3000 + b"]" * 3000)
        length = rng.choice([len(content), 2**63, 0, len(content) * 2])
        path.write_bytes(length.to_bytes(8, "little") + content + bytes(100))
    elif kind in (".png", ".jpg"):
        path.write_bytes(_png(*rng.choice([(60_000, 60_000), (2**31 - 1, 1), (8000, 8000), (1, 10**6), (0, 0)])))
    elif kind == ".npy":
        _npy(path, rng)
    elif kind in (".json", ".yaml"):
        pieces = [
            "[" * 10**5,
            '{"a":' * 10**5,
            "[" + "0," * 10**6 + "0]",
            '"' + "x" * 10**7 + '"',
            "9" * 10**6,
            "{" + '"a":1,' * 10**5 + '"a":1}',
        ]
        path.write_text(rng.choice(pieces))
    elif kind == ".parquet":
        _parquet(path, rng)
    else:
        path.write_bytes(
            rng.choice([b"[MASK*999999999]", b"[MASK]" * 10**5, b"a" * 10**7, b"\n" * 10**6, b"a " * 10**6])
        )
    return f"{path.name}: bomb"


def _zip_bomb(path: Path, rng: random.Random) -> None:
    records: dict[str, bytes] = {}
    with suppress(Exception), zipfile.ZipFile(path) as archive:  # damaged before, or an older pickle
        records = {record.filename: archive.read(record) for record in archive.infolist()}
    size = rng.choice([10**6, 10**8, 10**9])
    with zipfile.ZipFile(path, "w", zipfile.ZIP_DEFLATED) as archive:
        for name, content in records.items():
            if rng.random() < 0.8:
                archive.writestr(name, content)
        name = rng.choice([*records, "x.npy", "images.npy", "archive/data/bomb", "../../escape.npy"])
        with archive.open(name, "w", force_zip64=True) as out:
            shape = rng.choice([(size,), (size // 64, 8, 8)])
            out.write(_header({"descr": "|u1", "fortran_order": False, "shape": shape}))
            for _ in range(size // len(ZEROS)):
                out.write(ZEROS)


def _header(fields: Any) -> bytes:
    text = repr(fields).encode("utf-8", "backslashreplace")
    text += b" " * (63 - (10 + len(text)) % 64) + b"\n"
    return b"\x93NUMPY\x01\x00" + struct.pack("<H", min(65535, len(text))) + text


def _npy(path: Path, rng: random.Random) -> None:
    """A header with an odd type, shape or syntax."""
    descr = rng.choice(
        ["<f8", "|O", "<U1000000", "|V8", "<c16", "<M8[ns]", ">i8", "|S9", [("a", "<f4"), ("b", "|O")], 5, "x", "|b1"]
    )
    shape = rng.choice([(10**12,), (2**63, 2**63), (-1,), (), (0,), (3, 0, 5), "x", (1.5,), (1,) * 40, (4000,)])
    fields: Any = {"descr": descr, "fortran_order": rng.choice([True, False, "x"]), "shape": shape}
    if rng.random() < 0.2:
        fields = rng.choice([{}, [], "x" * 60_000, "__import__('os')", {**fields, CONTROLS: MARKUP}])
    path.write_bytes(_header(fields) + bytes(32_000))


def _png(width: int, height: int) -> bytes:
    def chunk(name: bytes, content: bytes) -> bytes:
        return struct.pack(">I", len(content)) + name + content + struct.pack(">I", zlib.crc32(name + content))

    header = struct.pack(">IIBBBBB", width, height, 8, 2, 0, 0, 0)
    rows = zlib.compress(bytes(min(10**7, height * (1 + 3 * width))), 9)
    text = chunk(b"zTXt", b"Comment\0\0" + zlib.compress(bytes(10**7)))
    return b"\x89PNG\r\n\x1a\n" + chunk(b"IHDR", header) + text + chunk(b"IDAT", rows) + chunk(b"IEND", b"")


def _parquet(path: Path, rng: random.Random) -> None:
    """Other columns and types, two columns of one name, one value a million times."""
    values: list[Any] = rng.choice(
        [
            pyarrow.array(["x" * 10**6] * 800),
            pyarrow.array([None, "a", None]),
            pyarrow.array([1, 2, 3]),
            pyarrow.array([b"\xff\xfe", b"ok"]),
            pyarrow.array([["a", "b"], []]),
            pyarrow.array([{"text": "a"}, None]),
            pyarrow.array(["a"] * 10**6).dictionary_encode(),
            pyarrow.array([], pyarrow.string()),
            pyarrow.array(["a", CONTROLS], pyarrow.large_string()),
        ]
    )
    names = rng.choice([["text"], ["text", "text"], [CONTROLS], [""], [MARKUP, "text"]])
    table = pyarrow.Table.from_arrays([values] * len(names), names=names)
    pyarrow.parquet.write_table(table, path, compression=rng.choice(["zstd", "none", "gzip"]))


def odd(path: Path, rng: random.Random) -> str:
    """Valid files with unusual content: types, shapes, modes, values at the edge."""
    if path.is_dir():
        return _odd_folder(path, rng)
    if path.suffix == ".npz":
        return _odd_npz(path, rng)
    if path.suffix == ".npy":
        np.save(path, _array(rng), allow_pickle=False)
    elif path.suffix == ".jsonl":
        values: list[Any] = ["a", "", None, 1, [], {}, "\ud800", CONTROLS, "a" * 10**6, ["a"]]
        records = [{rng.choice(["text", "text", "content", CONTROLS]): rng.choice(values)} for _ in range(20)]
        path.write_bytes("\n".join(map(json.dumps, records)).encode())
    elif path.suffix == ".parquet":
        _parquet(path, rng)
    else:
        texts = [
            "",
            " ",
            "\ufeffa b",
            "a\r\nb\rc",
            "\x00" * 50,
            CONTROLS * 20,
            MARKUP,
            "字" * 9999,
            "a\u2028b\x85c",
            "[MASK]",
            "[MASK*0]",
            "[MASK*-1]",
            "[MASK*]",
        ]
        path.write_bytes(rng.choice([rng.choice(texts).encode(), b"\xff\xfe\x00\x41", b"a\xc3", rng.randbytes(3000)]))
    return f"{path.name}: odd"


def _array(rng: random.Random) -> np.ndarray:
    kinds = ["u1", "i1", "<u2", ">u2", "<i4", ">i8", "<u8", "<f2", "<f4", ">f8", "b1", "c8", "M8[s]", "U3", "S2"]
    shape = rng.choice(
        [
            (),
            (0,),
            (7,),
            (4000,),
            (24, 8, 8),
            (24, 64),
            (24, 8, 8, 1),
            (24, 8, 8, 3),
            (24, 3, 8, 8),
            (2, 5),
            (0, 8, 8),
            (1, 1, 1, 1, 1),
        ]
    )
    kind = rng.choice(kinds)
    if kind[-1] == "]" or kind[0] in "US":
        return np.zeros(shape, kind)
    base = np.random.default_rng(rng.randrange(2**32)).integers(0, 60, shape)
    array: np.ndarray = np.asarray(base).astype(kind)
    if array.size and rng.random() < 0.5:
        extreme = {"f": [np.nan, np.inf, -1e30, 0.5], "u": [-1], "i": [-1], "b": [True], "c": [1j]}[array.dtype.kind]
        with np.errstate(over="ignore"):  # -1e30 is -inf in half precision
            edge = np.asarray(rng.choice(extreme)).astype(array.dtype)
        array.reshape(-1)[rng.randrange(array.size)] = edge
        if rng.random() < 0.3:
            array[...] = edge
    return np.asfortranarray(array) if rng.random() < 0.3 else array


def _odd_npz(path: Path, rng: random.Random) -> str:
    with np.load(path) as file:
        arrays = {name: file[name] for name in file.files}
    name = rng.choice(sorted(arrays))
    way = rng.choice(["other", "gone", "renamed", "added", "provenance"])
    if way == "provenance" and "provenance" in arrays:
        from tests.hostile.mutations import change_tree, json_text

        tree = change_tree(json.loads(str(arrays["provenance"])), rng)
        arrays["provenance"] = np.array(json_text(tree, rng).decode("utf-8", "replace"))
    elif way == "gone":
        del arrays[name]
    elif way == "renamed":
        arrays[rng.choice(["x", CONTROLS.replace("\0", ""), "images", "mean"])] = arrays.pop(name)
    elif way == "added":
        arrays[rng.choice(["labels", "label", "x", "images", "arr_0"])] = _array(rng)
    elif rng.random() < 0.5 and arrays[name].size and arrays[name].dtype.kind in "iuf":
        changed = arrays[name].astype(rng.choice(["<u8", "<f4", ">f8", "<f2", "i1", ">i4"]))
        changed = changed.reshape(rng.choice([changed.shape, (-1,), (1, *changed.shape), changed.shape[::-1]]))
        changed.reshape(-1)[rng.randrange(changed.size)] = (
            rng.choice([0, 1, 2**63 - 1]) if changed.dtype == "<u8" else rng.choice([0, 100])
        )
        arrays[name] = changed
    else:
        arrays[name] = _array(rng)
    buffer = io.BytesIO()
    rng.choice([np.savez, np.savez_compressed])(buffer, **arrays)
    path.write_bytes(buffer.getvalue())
    return f"{path.name}: {name} {way}"


def _odd_folder(path: Path, rng: random.Random) -> str:
    """Images of another mode, size, format or number of frames; files that are none."""
    found = sorted(p for p in path.rglob("*") if p.is_file())
    chosen = rng.choice(found)
    if chosen.suffix != ".png":
        return bomb(chosen, rng)
    numbers = np.random.default_rng(rng.randrange(2**32))
    mode = rng.choice(MODES)
    image = picture(mode, rng.choice([8, 8, 8, 1, 16, 500]), numbers)
    kind = rng.choice(["PNG", "PNG", "TIFF", "BMP", "GIF", "JPEG", "WEBP", "ICO", "PPM"])
    extra: dict[str, Any] = {"save_all": True, "append_images": [image, image]} if rng.random() < 0.1 else {}
    if rng.random() < 0.2:
        exif = Image.Exif()
        exif[274] = rng.choice([1, 3, 6, 8, 0, 99])
        extra["exif"] = exif
    if rng.random() < 0.2:
        extra["transparency"] = rng.choice([0, 5, 255])
    try:
        image.save(chosen, kind, **extra)
    except Exception:  # no such mode in this format
        picture("RGB", 8, numbers).save(chosen, "PNG")
    if rng.random() < 0.1:
        (chosen.parent / f"{CONTROLS[:9].replace('/', '')}.png").write_bytes(chosen.read_bytes())
    return f"{chosen.name}: {mode} as {kind}"


def tokenizer(path: Path, rng: random.Random) -> str:
    """Parts that make texts grow, pad, truncate or recurse."""
    tree = json.loads(path.read_text())
    grow = {"type": "Replace", "pattern": {"String": ""}, "content": rng.choice(["x" * 1000, CONTROLS, "", "aa"])}
    grown = {
        "type": "Replace",
        "pattern": {"Regex": rng.choice(["", ".", "(a+)+$", "(?=.)", "(", "\\b|x{1000}"])},
        "content": "aaaaaaaaaa",
    }
    padding = {"strategy": {"Fixed": rng.choice([10**9, 10**6, -1])}, "direction": "Right", "pad_to_multiple_of": None}
    padding |= {"pad_id": rng.choice([0, 10**9]), "pad_type_id": 0, "pad_token": "x" * rng.choice([1, 10**5])}
    changes: list[tuple[str, Any]] = [
        ("decoder", rng.choice([grow, grown, {"type": "Sequence", "decoders": [grow] * 30}])),
        ("normalizer", rng.choice([grow, grown, {"type": "Sequence", "normalizers": [grown] * 30}])),
        ("normalizer", {"type": "Prepend", "prepend": "x" * 10**6}),
        ("pre_tokenizer", {"type": "Metaspace", "replacement": "_", "prepend_scheme": "always", "split": True}),
        ("pre_tokenizer", {"type": "Split", "pattern": {"Regex": "(a|a)*b"}, "behavior": "Isolated", "invert": False}),
        ("padding", padding),
        (
            "truncation",
            {
                "direction": "Right",
                "max_length": rng.choice([0, 1, 10**18]),
                "strategy": "LongestFirst",
                "stride": rng.choice([0, 10**9]),
            },
        ),
        ("post_processor", {"type": "ByteLevel", "add_prefix_space": True, "trim_offsets": True, "use_regex": True}),
        (
            "added_tokens",
            [
                {
                    "id": rng.choice([0, 96, 97, 10**9, -1]),
                    "content": rng.choice(["", "a", CONTROLS, MARKUP, "x" * 10**6]),
                    "single_word": False,
                    "lstrip": True,
                    "rstrip": True,
                    "normalized": rng.random() < 0.5,
                    "special": rng.random() < 0.5,
                }
            ],
        ),
        (
            "model",
            {
                **tree["model"],
                "vocab": rng.choice(
                    [{}, {"a": 10**9}, {"a": 0, "b": 0}, {CONTROLS: 0, MARKUP: 1, "w0": 2}, [["a", float(10**300)]], []]
                ),
            },
        ),
        (
            "model",
            {**tree["model"], "unk_token": rng.choice([None, "missing", 5]), "dropout": rng.choice([None, 0.5, -1, 2])},
        ),
        ("normalizer", nested(300, True)),
    ]
    for key, value in rng.sample(changes, rng.choice([1, 1, 2])):
        tree[key] = value
    path.write_text(json.dumps(tree))
    return "tokenizer that grows"
