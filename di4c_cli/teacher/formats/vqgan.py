"""The VQGAN of MaskGIT: `last.ckpt` and `model.yaml`. It is an image tokenizer that comes with a teacher."""

from __future__ import annotations

import math
from dataclasses import dataclass
from typing import Any

from torch import Tensor

from di4c_cli.codec.vq import build_vqgan_on_meta
from di4c_cli.errors import UserError
from di4c_cli.load_report import LoadReport
from di4c_cli.teacher import pickles
from di4c_cli.teacher.bundle import require
from di4c_cli.teacher.model_files import ModelFiles, has_suffix

VQGAN_FILE = "vqgan.safetensors"
PUBLISHED_SETTINGS: dict[str, Any] = {"channels": 128, "multipliers": [1, 1, 2, 2, 4], "blocks": 2, "z_channels": 256}
PUBLISHED_SETTINGS |= {"embed_dim": 256, "codes": 1024, "resolution": 256, "attention_resolutions": [16]}
PUBLISHED_SETTINGS |= {"in_channels": 3, "out_channels": 3}


@dataclass
class ImageTokenizer:
    """A VQGAN's constructor arguments and weights."""

    settings: dict[str, Any]
    tensors: dict[str, Tensor]
    unused: dict[str, str]

    @property
    def codec(self) -> dict[str, Any]:
        """Its entry in config.json."""
        return {"type": "vq", "file": VQGAN_FILE, "vqgan": self.settings}

    def at_length(self, length: int) -> ImageTokenizer:
        """The same tokenizer for images of `length` codes: MaskGIT uses one VQGAN at 256 and at 512 pixels.

        `attention_resolutions` scales with the resolution.
        """
        side = math.isqrt(length)
        per_code = 2 ** (len(self.settings["multipliers"]) - 1)
        old, new = self.settings["resolution"], side * per_code
        if side * side != length:
            raise UserError(f"A VQGAN needs a square number of codes, not {length}.", "Use another model.")
        moved = [at * new // old for at in self.settings["attention_resolutions"]]
        settings = {**self.settings, "resolution": new, "attention_resolutions": moved}
        return ImageTokenizer(settings, self.tensors, self.unused)


def is_config(tree: dict[str, Any]) -> bool:
    """`model.yaml`."""
    model = tree.get("model")
    params = model.get("params") if isinstance(model, dict) else None
    return isinstance(params, dict) and isinstance(params.get("ddconfig"), dict)


def is_checkpoint(tree: dict[str, Any]) -> bool:
    """A Lightning file with a codebook."""
    state = tree.get("state_dict")
    return isinstance(state, dict) and has_suffix(state, "quantize.embedding.weight")


def detect(source: ModelFiles) -> bool:
    """Original or converted."""
    return _converted(source) is not None or source.checkpoint(is_checkpoint) is not None


def read(source: ModelFiles) -> ImageTokenizer:
    """The tokenizer; discriminator and perceptual loss, which training files carry too, are left out."""
    own = _converted(source)
    if own is not None:
        return own
    found = source.checkpoint(is_checkpoint)
    if found is None:
        raise UserError(f"{source.name} holds no VQGAN.", "Name the folder or file of the image tokenizer.")
    path, checkpoint = found
    stored = pickles.tensors_of(checkpoint["state_dict"], path.name)
    tensors = {name: tensor for name, tensor in stored.items() if not name.startswith("loss.")}
    tree = source.tree(is_config)
    settings = dict(PUBLISHED_SETTINGS) if tree is None else settings_of(tree)
    unused = {name: "loss of the tokenizer's own training" for name in stored if name not in tensors}
    return _checked(settings, tensors, unused, path.name)


def settings_of(tree: dict[str, Any]) -> dict[str, Any]:
    """Constructor arguments from `model.yaml`."""
    params = tree["model"]["params"]
    where = "The VQGAN"
    if params["ddconfig"].get("double_z"):
        raise UserError(f"{where} has double_z, which is not the published layout.", "Use the published one.")
    names = {"channels": "ch", "blocks": "num_res_blocks", "out_channels": "out_ch"}
    names |= {name: name for name in ("z_channels", "resolution", "in_channels")}
    settings = {ours: require(params, f"ddconfig.{theirs}", int, where) for ours, theirs in names.items()}
    settings["multipliers"] = require(params, "ddconfig.ch_mult", list, where)
    settings["attention_resolutions"] = require(params, "ddconfig.attn_resolutions", list, where)
    settings["embed_dim"] = require(params, "embed_dim", int, where)
    settings["codes"] = require(params, "n_embed", int, where)
    return settings


def _converted(source: ModelFiles) -> ImageTokenizer | None:
    """A tokenizer that `di4c convert` wrote: our settings beside safetensors."""
    tree = source.tree(lambda tree: tree.get("type") == "vqgan")
    path = source.tensor_file(lambda names: has_suffix(names, "quantize.embedding.weight"))
    if tree is None or path is None:
        return None
    settings = {key: value for key, value in tree.items() if key not in ("type", "di4c")}
    return _checked(settings, source.tensors(path), {}, path.name)


def _checked(
    settings: dict[str, Any], tensors: dict[str, Tensor], unused: dict[str, str], where: str
) -> ImageTokenizer:
    """The tokenizer, if the tensors are exactly those that the settings ask for."""
    network = build_vqgan_on_meta(settings)
    LoadReport.compare(network.state_dict(), tensors, unused=unused).check(where)
    return ImageTokenizer(settings, {name: tensor.float().contiguous() for name, tensor in tensors.items()}, unused)
