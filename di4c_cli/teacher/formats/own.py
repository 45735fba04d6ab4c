"""Our own folder: config.json and model.safetensors, as `distill` and `convert` write it."""

from __future__ import annotations

from pathlib import Path
from typing import Any

from di4c_cli import recipe_file, student
from di4c_cli.codec import locate
from di4c_cli.errors import UserError
from di4c_cli.teacher import safe
from di4c_cli.teacher.bundle import Bundle, Options
from di4c_cli.teacher.formats.dit import text_codec
from di4c_cli.teacher.source import Source

NAME = "di4c"


def is_config(tree: dict[str, Any]) -> bool:
    """Told by its format number."""
    return "di4c" in tree and "network" in tree


def folder_of(source: Source) -> Path | None:
    """Where config.json is."""
    return next((path.parent for path in source.files if path.name == "config.json"), None)


def weights_of(source: Source, folder: Path) -> Path:
    """The file the user named, or the one that belongs beside config.json."""
    named = source.named
    return (
        named if named is not None and safe.kind_of(named) == "safetensors" else folder / "model.safetensors"
    )


def detect(source: Source) -> bool:
    """By config.json; a foreign checkpoint that lies beside one and was named is not meant by it."""
    foreign = source.named is not None and safe.kind_of(source.named) == "pickle"
    return not foreign and folder_of(source) is not None and source.tree(is_config) is not None


def read(source: Source, options: Options) -> Bundle:
    """The model; where it came from stays as recorded, where it was found is added."""
    folder = folder_of(source)
    assert folder is not None
    config = student.read_config(folder)
    path = weights_of(source, folder)
    if not path.is_file():
        raise UserError(f"{folder} has no model.safetensors.", "Name a complete model folder.")
    file = config.codec.get("file")
    if file is not None:
        locate({"file": file}, folder)  # a missing decoder is told now, not after hours of training
    if "repo" in source.origin:
        config.provenance = {**config.provenance, "loaded_from": dict(source.origin)}
    if options.tokenizer is not None:
        config.codec, folder = text_codec(config.network["symbols"], None, options)
    student.plan(config, student.read_shapes(path), str(path))  # before a number of the file is read
    return Bundle(config, student.read_tensors(path), str(path), folder=folder)


def recipe(source: Source) -> str | None:
    """The recipe a model was made with, or the published one for its kind of network."""
    folder = folder_of(source)
    config = student.read_config(folder) if folder is not None else None
    if config is None:
        return None
    made = config.provenance.get("recipe")
    name = made.get("name") if isinstance(made, dict) and made.get("kind") == "distill" else None
    published = {"dit": "sdtt-7", "maskgit": "maskgit-imagenet256", "unet": "tauldr-cifar10"}
    return name if name in recipe_file.names() else published[config.network["type"]]
