"""Di4C students of SDTT as Lightning checkpoints: live weights by name, the EMA as a list in the same order."""

from __future__ import annotations

from typing import Any

from di4c_cli.teacher import pickles
from di4c_cli.teacher.bundle import Bundle, LoadOptions
from di4c_cli.teacher.formats import dit, sdtt
from di4c_cli.teacher.model_files import ModelFiles

NAME = "sdtt-student"
RECIPE = "sdtt-7"


def is_checkpoint(tree: dict[str, Any]) -> bool:
    """A Lightning file whose `state_dict` is a DiT."""
    state = tree.get("state_dict")
    return isinstance(state, dict) and dit.holds_dit(state)


def detect(source: ModelFiles) -> bool:
    """By the checkpoint alone: the training configuration is not stored in it and may be absent."""
    return source.checkpoint(is_checkpoint) is not None


def read(source: ModelFiles, options: LoadOptions) -> Bundle:
    """The student (or an SDTT training file without λ). Its authors sample from the live weights."""
    found = source.checkpoint(is_checkpoint)
    assert found is not None
    path, checkpoint = found
    tensors = pickles.tensors_of(checkpoint["state_dict"], path.name)
    weights = options.weights or "live"
    if weights == "ema":
        names = [name for name in tensors if not name.endswith(dit.BUFFER)]  # the EMA has no buffers
        ema = checkpoint.get("ema")
        tensors |= pickles.averaged(ema.get("shadow_params") if isinstance(ema, dict) else None, names, path)
    tree = source.tree(sdtt.is_config)
    settings = {} if tree is None else sdtt.settings_of(tree)
    tokenizer = None if tree is None else sdtt.tokenizer_of(tree)
    provenance = {"format": NAME, "weights": weights}
    result = dit.bundle(source, path.name, tensors, settings, options, tokenizer, provenance)
    result.unused |= {key: "training state" for key in checkpoint if key not in ("state_dict", "ema")}
    result.unused["ema" if weights == "live" else "state_dict"] = f"the {weights} weights were asked for"
    return result
