"""Our own model folder, as `distill` and `convert` write it."""

from __future__ import annotations

from pathlib import Path

from torch import Tensor

from di4c_cli import recipe_file
from di4c_cli.build import check_fit
from di4c_cli.codec import locate
from di4c_cli.config import ModelConfig
from di4c_cli.errors import UserError
from di4c_cli.limits import read_config
from di4c_cli.metric.features import tensors_digest
from di4c_cli.model_folder import read_shapes, read_tensors, weights_file, with_base
from di4c_cli.teacher import safe
from di4c_cli.teacher.bundle import Bundle, LoadOptions
from di4c_cli.teacher.formats.dit import text_codec
from di4c_cli.teacher.model_files import ModelFiles, is_own_config

NAME = "di4c"
NAME_BASE = "Name the teacher with --base of `di4c convert`, which writes the whole student."


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
    if config.adapter is not None and not options.adapters:
        raise UserError(f"'{config.name}' is an adapter, and another one needs a whole model.", "Convert it first.")
    if config.adapter is not None:
        return Bundle(config, _whole_adapter(config, path.parent, options), str(path), folder=folder)
    check_fit(config, read_shapes(path), str(path))  # before any tensor is read
    return Bundle(config, read_tensors(path), str(path), folder=folder)


def _whole_adapter(config: ModelConfig, folder: Path, options: LoadOptions) -> dict[str, Tensor]:
    """An adapter merged into its teacher's weights; the teacher is `--base`, or the one that may be loaded unnamed."""
    # imported here: these modules import this package
    from di4c_cli.lineage import find_teacher, recorded_teacher
    from di4c_cli.teacher import read as read_model

    found = find_teacher(config.provenance, folder)
    if options.base is None and found is None:
        name = recorded_teacher(config.provenance) or "its teacher"
        raise UserError(f"'{config.name}' is an adapter of '{name}', which is not known here.", NAME_BASE)
    ref, settings = (options.base, {}) if options.base is not None else (found.ref, found.options)  # type: ignore[union-attr]
    weights = read_model(str(ref), adapters=False, **settings).load().denoiser.network.state_dict()
    if config.provenance.get("base_digest") not in (None, tensors_digest(weights)):
        raise UserError(f"'{ref}' is not the teacher with which '{config.name}' was trained.", NAME_BASE)
    return with_base(folder, config, weights)


def recipe(source: ModelFiles) -> str | None:
    """The recipe a model was made with, or the published one for its kind of network."""
    folder = folder_of(source)
    if folder is None:
        return None
    config = read_config(folder)
    made = config.provenance.get("recipe")
    name = made.get("name") if isinstance(made, dict) and made.get("kind") == "distill" else None
    published = {"dit": "sdtt-7", "maskgit": "maskgit-imagenet256", "unet": "tauldr-cifar10"}
    return name if name in recipe_file.names() else published.get(config.network["type"], "masked-lm")
