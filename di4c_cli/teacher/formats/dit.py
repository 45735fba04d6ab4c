"""The DiT on disk: SDTT and MDLM teachers as on the Hub, and Di4C students of SDTT as Lightning checkpoints."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from torch import Tensor

from di4c_cli.codec.text import GPT2_SIZE
from di4c_cli.config import ModelConfig
from di4c_cli.errors import UserError
from di4c_cli.foreign.regular import is_regular
from di4c_cli.latent.config import LatentConfig
from di4c_cli.teacher import pickles
from di4c_cli.teacher.bundle import Bundle, LoadOptions, strip
from di4c_cli.teacher.formats.masked_lm import Tree, demand
from di4c_cli.teacher.model_files import ModelFiles, has_suffix

TOKEN_TABLE = "vocab_embed.embedding"
ROTARY_BUFFER = "rotary_emb.inv_freq"
LATENT_WEIGHT = "latent_projection.0.weight"
PUBLISHED_LENGTH = 1024
BERT_SIZE = 30522
SDTT_NAMES = {"width": "hidden_size", "depth": "n_blocks", "heads": "n_heads", "length": "length"}
MDLM_NAMES = {"width": "hidden_dim", "depth": "n_blocks", "heads": "n_heads", "length": "model_length"}
"""Our names of settings and those of the two configurations; the others are the same in all three."""


def is_sdtt_config(tree: Tree) -> bool:
    """The training configuration; interpolations such as `${model.length}` stay unresolved strings in it."""
    model = tree.get("model")
    return isinstance(model, dict) and "hidden_size" in model and "n_heads" in model


def sdtt_settings(tree: Tree) -> Tree:
    """The settings under our names; the configuration does not give the size of the vocabulary.

    SDTT writes the tokenizer's name in one of two places.
    """
    if isinstance(tree.get("noise"), dict):
        demand(tree["noise"], {"type": "loglinear"}, "The noise of the configuration")
    found = _renamed(tree["model"], SDTT_NAMES)
    if "time_conditioning" in tree:
        found["time_conditioning"] = tree["time_conditioning"]
    for part, key in (("data", "tokenizer_name_or_path"), ("tokenizer", "name")):
        section = tree.get(part)
        if isinstance(section, dict) and isinstance(section.get(key), str):
            found["tokenizer"] = section[key]
    return found


def is_mdlm_config(tree: Tree) -> bool:
    """A flat configuration, told from SDTT's by `hidden_dim` and `model_length` at the top level."""
    return "hidden_dim" in tree and "model_length" in tree and not is_uniform_config(tree)


def is_uniform_config(tree: Tree) -> bool:
    """Duo and UDLM write MDLM's configuration with a `model_type` of their own."""
    return tree.get("model_type") in ("DUO", "duo", "udlm")


def mdlm_settings(tree: Tree) -> Tree:
    """The settings under our names; MDLM's vocabulary counts the mask."""
    found = _renamed(tree, MDLM_NAMES | {"time_conditioning": "time_conditioning"})
    if type(tree.get("vocab_size")) is int:
        found["symbols"] = tree["vocab_size"] - (not is_uniform_config(tree))
    return found


def _renamed(tree: Tree, names: dict[str, str]) -> Tree:
    names = names | {"cond_dim": "cond_dim", "dropout": "dropout"}
    return {ours: tree[theirs] for ours, theirs in names.items() if theirs in tree}


@dataclass(frozen=True)
class HubFormat:
    """`backbone.*` tensors in safetensors beside the training configuration; remote code is never fetched."""

    NAME: str
    is_config: Callable[[Tree], bool]
    settings_of: Callable[[Tree], Tree]
    RECIPE: str = "sdtt-7"
    uniform: bool = False

    def detect(self, source: ModelFiles) -> bool:
        """By the configuration and the names of the tensors."""
        return source.tree(self.is_config) is not None and source.tensor_file(holds_dit) is not None

    def read(self, source: ModelFiles, options: LoadOptions) -> Bundle:
        """The teacher; the EMA is not in these files, so there is only one set of weights."""
        tree, path = source.tree(self.is_config), source.tensor_file(holds_dit)
        assert tree is not None and path is not None
        settings = {"time_conditioning": self.uniform} | self.settings_of(tree) | {"uniform": self.uniform}
        return bundle(source, path.name, source.tensors(path), settings, options, {"format": self.NAME})


SDTT = HubFormat("sdtt", is_sdtt_config, sdtt_settings)
MDLM = HubFormat("mdlm", is_mdlm_config, mdlm_settings)
DUO = HubFormat("duo", is_uniform_config, mdlm_settings, "duo", uniform=True)


class SdttStudent:
    """A Lightning checkpoint: live weights by name, the EMA as a list in the same order."""

    NAME = "sdtt-student"
    RECIPE = "sdtt-7"

    @staticmethod
    def is_checkpoint(tree: Tree) -> bool:
        """A Lightning file whose `state_dict` is a DiT."""
        state = tree.get("state_dict")
        return isinstance(state, dict) and holds_dit(state)

    def detect(self, source: ModelFiles) -> bool:
        """By the checkpoint alone: the training configuration is not stored in it and may be absent."""
        return source.checkpoint(self.is_checkpoint) is not None

    def read(self, source: ModelFiles, options: LoadOptions) -> Bundle:
        """The student (or an SDTT training file without λ). Its authors sample from the live weights."""
        found = source.checkpoint(self.is_checkpoint)
        assert found is not None
        path, checkpoint = found
        tensors = pickles.tensors_of(checkpoint["state_dict"], path.name)
        ema, student = checkpoint.get("ema"), has_suffix(tensors, LATENT_WEIGHT)
        reason = "as its authors do" if student else "although MDLM's authors evaluate the averages"
        weights = options.choose("live", ema is not None, reason, path.name)
        if weights == "ema":
            names = [name for name in tensors if not name.endswith(ROTARY_BUFFER)]  # the EMA has no buffers
            tensors |= pickles.averaged(ema.get("shadow_params") if isinstance(ema, dict) else None, names, path)
        tree = source.tree(is_sdtt_config)
        settings = {} if tree is None else sdtt_settings(tree)
        provenance = {"format": self.NAME, "weights": weights}
        result = bundle(source, path.name, tensors, settings, options, provenance)
        result.unused |= {key: "training state" for key in checkpoint if key not in ("state_dict", "ema")}
        result.unused["ema" if weights == "live" else "state_dict"] = f"the {weights} weights were asked for"
        return result


def holds_dit(names: Any) -> bool:
    """Whether names of tensors are those of the DiT, under any prefix."""
    return has_suffix(names, TOKEN_TABLE) and has_suffix(names, "output_layer.linear.weight")


def sizes(tensors: dict[str, Tensor], where: str, uniform: bool = False) -> dict[str, int]:
    """Sizes from the shapes; a table has one row for the mask unless `uniform`. The rotary buffer tells the heads."""
    table, condition = tensors.get(TOKEN_TABLE), tensors.get("sigma_map.mlp.0.bias")
    if table is None or table.dim() != 2 or condition is None or condition.dim() != 1 or len(table) < 2:
        raise UserError(f"{where} lacks the token table or the noise embedding of a DiT.", "Fetch it again.")
    depth = len({name.split(".")[1] for name in tensors if name.startswith("blocks.")})
    found = {"symbols": len(table) - (not uniform), "width": table.shape[1], "depth": depth, "cond_dim": len(condition)}
    buffer = tensors.get(ROTARY_BUFFER)
    if buffer is not None and buffer.dim() == 1 and len(buffer):
        found["heads"] = max(1, table.shape[1] // (2 * len(buffer)))
    return found


def agree(found: dict[str, int], claimed: dict[str, Any], where: str) -> None:
    """Reject a configuration that contradicts its weights."""
    for name, value in claimed.items():
        if type(value) is int and name in found and value != found[name]:
            problem = f"{where}: the configuration says {name} {value}, the weights say {found[name]}."
            raise UserError(problem, "Put the configuration beside the weights it belongs to.")


def text_codec(symbols: int, tokenizer: str | None, options: LoadOptions) -> tuple[dict[str, Any], Path | None]:
    """The codec entry and the folder of its file, if it has one."""
    if options.tokenizer is not None:
        path = Path(options.tokenizer)
        if not is_regular(path):
            raise UserError(f"There is no tokenizer file {path}.", "Name a tokenizer.json.")
        return {"type": "text", "file": path.name}, path.parent
    if tokenizer is None and symbols in (BERT_SIZE - 1, BERT_SIZE):  # the models of LM1B do not say it
        tokenizer = "bert-base-uncased"
    name = "gpt2" if tokenizer in (None, "gpt2", "openai-community/gpt2") else str(tokenizer)
    codec: dict[str, Any] = {"type": "text", "name": name}
    if symbols < GPT2_SIZE:
        codec["symbols"] = symbols
    return codec, None


def bundle(
    source: ModelFiles,
    where: str,
    tensors: dict[str, Tensor],
    settings: dict[str, Any],
    options: LoadOptions,
    provenance: dict[str, Any],
) -> Bundle:
    """The bundle of a DiT; `settings` are the configuration's own values, checked against the weights."""
    doubled = any(name.startswith("backbone.backbone.") for name in tensors)  # a wrapper saved inside another
    kept, renamed, unused = strip(tensors, "backbone.backbone." if doubled else "backbone.")
    uniform = settings.get("uniform", False)
    found = sizes(kept, where, uniform)
    agree(found, settings, where)
    heads = options.heads or found.get("heads") or settings.get("heads")
    if type(heads) is not int or heads < 1:
        hint = "Use `di4c convert` with --heads and name what it writes."
        raise UserError(f"{where} does not record its number of attention heads.", hint)
    codec, folder = text_codec(found["symbols"], settings.get("tokenizer"), options)
    student = LATENT_WEIGHT in kept
    config = ModelConfig(
        kind="student" if student else "teacher",
        name=source.name,
        network={
            "type": "dit",
            **found,
            "heads": heads,
            "length": options.length or settings.get("length") or PUBLISHED_LENGTH,
            "dropout": settings.get("dropout", 0.1),
            "time_conditioning": settings.get("time_conditioning", False),
            **({"mask": False} if uniform else {}),
        },
        process={"type": "uniform" if uniform else "masked", "symbols": found["symbols"], "schedule": "linear"},
        latent=LatentConfig(dim=1, inject="token", features="sinusoid") if student else None,
        codec=codec,
        provenance={**source.origin, **provenance},
    )
    return Bundle(config, kept, where, renamed, unused, folder)
