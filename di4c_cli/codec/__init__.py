"""Codecs decode ids to text, pixel images or VQ images."""

from __future__ import annotations

from pathlib import Path
from typing import Any

from tokenizers import Tokenizer
from torch import Tensor

from di4c_cli import embedded
from di4c_cli.codec.base import Codec, Pixels, Plain
from di4c_cli.codec.text import GPT2_SIZE, Text, gpt2_tokenizer
from di4c_cli.codec.vq import Vq
from di4c_cli.errors import UserError
from di4c_cli.foreign.regular import is_plain_name
from di4c_cli.foreign.tokenizer import MAX_VOCABULARY
from di4c_cli.limits import CHECK_CONFIG, check_pixels

__all__ = ["Codec", "build", "locate"]


def build(config: dict[str, Any], folder: Path | None = None, tensors: dict[str, Tensor] | None = None) -> Codec:
    """The codec of a config.json entry; its file is in `folder` or among the embedded assets.

    `tensors` are a decoder's weights that are already in memory.
    """
    options = dict(config)
    kind = options.pop("type", "none")
    if kind == "none":
        return Plain()
    if kind == "pixels":
        return Pixels(*check_pixels(options))
    if kind == "text":
        return _text(options, folder)
    if kind == "vq":
        return Vq(locate(options, folder) if tensors is None else tensors, options.get("vqgan"))
    raise UserError(f"Unknown codec type '{kind}'.", "Known: none, pixels, text, vq.")


def _text(options: dict[str, Any], folder: Path | None) -> Codec:
    """A tokenizer by `name` (GPT-2's is in the package) or by file."""
    if "name" not in options:
        path, mask = locate(options, folder), options.get("mask_id")
        if mask is not None and (type(mask) is not int or not 0 <= mask < MAX_VOCABULARY):
            raise UserError(f"A mask of the id {mask!r} is impossible.", CHECK_CONFIG)
        return Text(Tokenizer.from_file(str(path)) if "asset" in options else path, mask)
    if options["name"] != "gpt2":
        hint = "Convert the model with --tokenizer FILE, its tokenizer.json."
        raise UserError(f"The tokenizer '{options['name']}' is not part of di4c.", hint)
    symbols = options.get("symbols", GPT2_SIZE)
    if type(symbols) is not int or symbols < 1:
        raise UserError(f"A tokenizer of {symbols!r} symbols is impossible.", CHECK_CONFIG)
    return Text(gpt2_tokenizer(symbols))


def locate(options: dict[str, Any], folder: Path | None) -> Path:
    """The codec's file: `asset` is a file of the package, `file` one beside config.json. Both must be plain names."""
    name = str(options.get("asset") or options.get("file") or "")
    if not is_plain_name(name):
        raise UserError(f"The codec's file name '{name}' is not a plain name.", CHECK_CONFIG)
    path = embedded.asset(name) if "asset" in options else (folder or Path()) / name
    if not path.is_file():
        raise UserError(f"The codec's file {name} is missing from the model folder.", "Copy it there.")
    return path
