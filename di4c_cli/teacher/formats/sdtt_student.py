"""Di4C students of SDTT as Lightning checkpoints: live weights by name, the EMA as a list in that order."""

from __future__ import annotations

from pathlib import Path
from typing import Any

from torch import Tensor

from di4c_cli.errors import UserError
from di4c_cli.teacher import safe
from di4c_cli.teacher.bundle import Bundle, Options
from di4c_cli.teacher.formats import dit, sdtt
from di4c_cli.teacher.source import Source

NAME = "sdtt-student"
RECIPE = "sdtt-7"


def is_checkpoint(tree: dict[str, Any]) -> bool:
    """A Lightning file whose `state_dict` is a DiT."""
    state = tree.get("state_dict")
    return isinstance(state, dict) and dit.holds_dit(state)


def detect(source: Source) -> bool:
    """By the checkpoint alone: the training configuration is not stored in it and may be absent."""
    return source.checkpoint(is_checkpoint) is not None


def read(source: Source, options: Options) -> Bundle:
    """The student (or an SDTT training file without λ). Its authors sample from the live weights."""
    found = source.checkpoint(is_checkpoint)
    assert found is not None
    path, checkpoint = found
    tensors = safe.tensors_of(checkpoint["state_dict"], path.name)
    weights = options.weights or "live"
    if weights == "ema":
        tensors |= averaged(checkpoint, list(tensors), path)
    tree = source.tree(sdtt.is_config)
    result = dit.bundle(
        source,
        path.name,
        tensors,
        {} if tree is None else sdtt.settings_of(tree),
        options,
        None if tree is None else sdtt.tokenizer_of(tree),
        {"format": NAME, "weights": weights},
    )
    result.unused |= {key: "state of the training" for key in checkpoint if key not in ("state_dict", "ema")}
    result.unused["ema" if weights == "live" else "state_dict"] = f"the {weights} weights were asked for"
    return result


def averaged(checkpoint: dict[str, Any], names: list[str], path: Path) -> dict[str, Tensor]:
    """The EMA under the names of the live weights: parameters in order, the rotary buffer left out."""
    ema = checkpoint.get("ema")
    shadow = ema.get("shadow_params") if isinstance(ema, dict) else None
    parameters = [name for name in names if not name.endswith(dit.BUFFER)]
    if not isinstance(shadow, list) or len(shadow) != len(parameters):
        raise UserError(
            f"{path.name} holds no complete EMA.",
            "Use `di4c convert` with --weights live and name what it writes.",
        )
    for name, tensor in zip(parameters, shadow):
        safe.check_plain(tensor, name, path.name)
    return dict(zip(parameters, shadow))
