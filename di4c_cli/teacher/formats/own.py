"""Our own model folder, as `distill` and `convert` write it."""

from __future__ import annotations

from pathlib import Path

from di4c_cli import recipe_file
from di4c_cli.build import check_fit
from di4c_cli.codec import locate
from di4c_cli.limits import read_config
from di4c_cli.model_folder import read_shapes, read_tensors, weights_file
from di4c_cli.teacher import safe
from di4c_cli.teacher.bundle import Bundle, LoadOptions
from di4c_cli.teacher.formats.dit import text_codec
from di4c_cli.teacher.model_files import ModelFiles, is_own_config

NAME = "di4c"


def folder_of(source: ModelFiles) -> Path | None:
    """The folder of config.json, if there is one."""
    return next((path.parent for path in source.files if path.name == "config.json"), None)


def detect(source: ModelFiles) -> bool:
    """By config.json, unless the user named a foreign checkpoint that lies beside one."""
    foreign = source.named is not None and safe.kind_of(source.named) == "pickle"
    return not foreign and folder_of(source) is not None and source.tree(is_own_config) is not None


def read(source: ModelFiles, options: LoadOptions) -> Bundle:
    """The model; its provenance stays as recorded, and the place where it was found is added."""
    folder, named = folder_of(source), source.named
    assert folder is not None
    config = read_config(folder)
    path = named if named is not None and safe.kind_of(named) == "safetensors" else weights_file(folder)
    file = config.codec.get("file")
    if file is not None:
        locate({"file": file}, folder)  # a missing decoder is reported now, not after hours of training
    if "repo" in source.origin:
        config.provenance = {**config.provenance, "loaded_from": dict(source.origin)}
    if options.tokenizer is not None:
        config.codec, folder = text_codec(config.network["symbols"], None, options)
    check_fit(config, read_shapes(path), str(path))  # before any tensor is read
    return Bundle(config, read_tensors(path), str(path), folder=folder)


def recipe(source: ModelFiles) -> str | None:
    """The recipe a model was made with, or the published one for its kind of network."""
    folder = folder_of(source)
    if folder is None:
        return None
    config = read_config(folder)
    made = config.provenance.get("recipe")
    name = made.get("name") if isinstance(made, dict) and made.get("kind") == "distill" else None
    published = {"dit": "sdtt-7", "maskgit": "maskgit-imagenet256", "unet": "tauldr-cifar10"}
    return name if name in recipe_file.names() else published[config.network["type"]]
