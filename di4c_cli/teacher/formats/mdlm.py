"""MDLM as on the Hub: the DiT with a flat configuration whose vocabulary counts the mask."""

from __future__ import annotations

from typing import Any

from di4c_cli.teacher.bundle import Bundle, LoadOptions
from di4c_cli.teacher.formats import dit
from di4c_cli.teacher.model_files import ModelFiles

NAME = "mdlm"
RECIPE = "sdtt-7"


def is_config(tree: dict[str, Any]) -> bool:
    """Told from SDTT's by `hidden_dim` and `model_length` at the top level."""
    return "hidden_dim" in tree and "model_length" in tree


def detect(source: ModelFiles) -> bool:
    """A DiT in safetensors beside MDLM's configuration; its remote code is never fetched."""
    return source.tree(is_config) is not None and source.tensor_file(dit.holds_dit) is not None


def read(source: ModelFiles, options: LoadOptions) -> Bundle:
    """The teacher; `time_conditioning` is honoured."""
    tree, path = source.tree(is_config), source.tensor_file(dit.holds_dit)
    assert tree is not None and path is not None
    names = {"width": "hidden_dim", "depth": "n_blocks", "heads": "n_heads", "cond_dim": "cond_dim"}
    names |= {"length": "model_length", "dropout": "dropout", "time_conditioning": "time_conditioning"}
    settings = {ours: tree[theirs] for ours, theirs in names.items() if theirs in tree}
    if type(tree.get("vocab_size")) is int:
        settings["symbols"] = tree["vocab_size"] - 1
    return dit.bundle(source, path.name, source.tensors(path), settings, options, None, {"format": NAME})
