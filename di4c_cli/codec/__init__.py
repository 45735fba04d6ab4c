"""Codecs turn ids into what people look at: text, grey or colour images, VQ images."""

from __future__ import annotations

from pathlib import Path
from typing import Any

from di4c_cli import embedded
from di4c_cli.codec.base import Codec, Plain
from di4c_cli.errors import UserError

__all__ = ["Codec", "build"]


def build(config: dict[str, Any], folder: Path | None = None) -> Codec:
    """The codec of a config.json entry; files are looked up in `folder` or among the embedded assets."""
    options = dict(config)
    kind = options.pop("type", "none")
    if kind == "none":
        return Plain()
    if kind == "pixels":
        from di4c_cli.codec.pixels import Pixels

        return Pixels(tuple(options["shape"]), int(options["levels"]))
    if kind == "text":
        from di4c_cli.codec.text import Text

        return Text(_locate(options, folder))
    if kind == "vq":
        from di4c_cli.codec.vq import Vq

        return Vq(_locate(options, folder), options["vqgan"])
    raise UserError(f"Unknown codec type '{kind}'.", "Known: none, pixels, text, vq.")


def _locate(options: dict[str, Any], folder: Path | None) -> Path:
    """`asset` is a file of ours, `file` one beside config.json; neither may leave its folder."""
    name = str(options.get("asset") or options.get("file") or "")
    if not name or name != Path(name).name:
        raise UserError(f"The codec's file name '{name}' is not a plain name.", "Check the model's config.json.")
    path = embedded.asset(name) if "asset" in options else (folder or Path()) / name
    if not path.is_file():
        raise UserError(f"The codec's file {name} is missing from the model folder.", "Copy it there.")
    return path
