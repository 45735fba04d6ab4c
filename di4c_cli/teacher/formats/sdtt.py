"""SDTT teachers as their authors push them to the Hub: `backbone.*` tensors, the training configuration."""

from __future__ import annotations

from typing import Any

from di4c_cli.teacher.bundle import Bundle, LoadOptions
from di4c_cli.teacher.formats import dit
from di4c_cli.teacher.model_files import ModelFiles

NAME = "sdtt"
RECIPE = "sdtt-7"


def is_config(tree: dict[str, Any]) -> bool:
    """The training configuration; interpolations such as `${model.length}` stay unresolved strings in it."""
    model = tree.get("model")
    return isinstance(model, dict) and "hidden_size" in model and "n_heads" in model


def settings_of(tree: dict[str, Any]) -> dict[str, Any]:
    """The plain fields of the configuration under our names. The vocabulary's size is not among them."""
    model = tree["model"]
    names = {"width": "hidden_size", "depth": "n_blocks", "heads": "n_heads", "cond_dim": "cond_dim"}
    names |= {"length": "length", "dropout": "dropout"}
    found = {ours: model[theirs] for ours, theirs in names.items() if theirs in model}
    if "time_conditioning" in tree:
        found["time_conditioning"] = tree["time_conditioning"]
    return found


def tokenizer_of(tree: dict[str, Any]) -> str | None:
    """The tokenizer's name, which SDTT writes in one of two places."""
    for part, key in (("tokenizer", "name"), ("data", "tokenizer_name_or_path")):
        section = tree.get(part)
        if isinstance(section, dict) and isinstance(section.get(key), str):
            return str(section[key])
    return None


def detect(source: ModelFiles) -> bool:
    """A DiT in safetensors beside the training configuration."""
    return source.tree(is_config) is not None and source.tensor_file(dit.holds_dit) is not None


def read(source: ModelFiles, options: LoadOptions) -> Bundle:
    """The teacher; the EMA is not in these files, so there is only one set of weights."""
    tree, path = source.tree(is_config), source.tensor_file(dit.holds_dit)
    assert tree is not None and path is not None
    settings, tokenizer = settings_of(tree), tokenizer_of(tree)
    return dit.bundle(source, path.name, source.tensors(path), settings, options, tokenizer, {"format": NAME})
