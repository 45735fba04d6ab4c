"""Functions that the formats of the DiT share (SDTT, MDLM, Di4C students of SDTT)."""

from __future__ import annotations

from pathlib import Path
from typing import Any

from torch import Tensor

from di4c_cli.codec.text import GPT2_SIZE
from di4c_cli.config import ModelConfig
from di4c_cli.errors import UserError
from di4c_cli.latent.config import LatentConfig
from di4c_cli.teacher import safe
from di4c_cli.teacher.bundle import Bundle, LoadOptions, strip
from di4c_cli.teacher.model_files import ModelFiles, has_suffix

EMBEDDING = "vocab_embed.embedding"
BUFFER = "rotary_emb.inv_freq"
LATENT = "latent_projection.0.weight"
PUBLISHED_LENGTH = 1024


def holds_dit(names: Any) -> bool:
    """Whether names of tensors are those of the DiT, under any prefix."""
    return has_suffix(names, EMBEDDING) and has_suffix(names, "output_layer.linear.weight")


def backbone(tensors: dict[str, Tensor]) -> tuple[dict[str, Tensor], dict[str, str], dict[str, str]]:
    """The network's tensors under our names; a wrapper saved inside another doubles the prefix."""
    doubled = any(name.startswith("backbone.backbone.") for name in tensors)
    return strip(tensors, ("backbone.backbone.",) if doubled else ("backbone.",), "outside the network")


def sizes(tensors: dict[str, Tensor], where: str) -> dict[str, int]:
    """Sizes from the shapes: symbols, width, depth, cond_dim, and the heads if the rotary buffer is there."""
    table, condition = tensors.get(EMBEDDING), tensors.get("sigma_map.mlp.0.bias")
    if table is None or table.dim() != 2 or condition is None or condition.dim() != 1 or len(table) < 2:
        raise UserError(f"{where} lacks the token table or the noise embedding of a DiT.", "Fetch it again.")
    depth = len({name.split(".")[1] for name in tensors if name.startswith("blocks.")})
    found = {"symbols": len(table) - 1, "width": table.shape[1], "depth": depth, "cond_dim": len(condition)}
    buffer = tensors.get(BUFFER)
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
        if not safe.is_regular(path):
            raise UserError(f"There is no tokenizer file {path}.", "Name a tokenizer.json.")
        return {"type": "text", "file": path.name}, path.parent
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
    tokenizer: str | None = None,
    provenance: dict[str, Any] | None = None,
) -> Bundle:
    """The bundle of a DiT; `settings` are the configuration's own values, checked against the weights."""
    kept, renamed, unused = backbone(tensors)
    found = sizes(kept, where)
    agree(found, {name: value for name, value in settings.items() if name != "length"}, where)
    heads = options.heads or found.get("heads") or settings.get("heads")
    if type(heads) is not int or heads < 1:
        hint = "Use `di4c convert` with --heads and name what it writes."
        raise UserError(f"{where} does not record its number of attention heads.", hint)
    codec, folder = text_codec(found["symbols"], tokenizer, options)
    student = LATENT in kept
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
        },
        process={"type": "masked", "symbols": found["symbols"], "schedule": "linear"},
        latent=LatentConfig(dim=1, inject="token", features="sinusoid") if student else None,
        codec=codec,
        provenance={**source.origin, **(provenance or {})},
    )
    return Bundle(config, kept, where, renamed, unused, folder)
