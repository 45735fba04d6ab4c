"""MaskGIT transformers in PyTorch (`.pth`), with or without λ, and the VQGAN beside them if there is one."""

from __future__ import annotations

from typing import Any

from torch import Tensor

from di4c_cli.config import ModelConfig
from di4c_cli.errors import UserError
from di4c_cli.latent.config import LatentConfig
from di4c_cli.sampler.config import SamplingConfig
from di4c_cli.teacher import pickles
from di4c_cli.teacher.bundle import Bundle, LoadOptions, strip
from di4c_cli.teacher.formats import vqgan
from di4c_cli.teacher.model_files import ModelFiles
from di4c_cli.teacher.reference import find

NAME = "maskgit"
RECIPE = "maskgit-imagenet256"
LATENT_WEIGHT = "latent_projection.0.weight"
PUBLISHED_WIDTH, PUBLISHED_HEADS = 768, 16
PUBLISHED_CLASSES = 1000
DEFAULT_GUIDANCE, DEFAULT_STEPS = 3.0, 8


def is_checkpoint(tree: dict[str, Any]) -> bool:
    """`model_state_dict` with a token table, positions and an output bias."""
    state = tree.get("model_state_dict")
    if not isinstance(state, dict):
        return False
    names = {str(name).removeprefix("module.") for name in state}
    return {"tok_emb.weight", "pos_emb", "bias"} <= names


def detect(source: ModelFiles) -> bool:
    """By the checkpoint: the file holds no configuration at all."""
    return source.checkpoint(is_checkpoint) is not None


def read(source: ModelFiles, options: LoadOptions) -> Bundle:
    """The transformer with its image tokenizer, if there is one."""
    found = source.checkpoint(is_checkpoint)
    assert found is not None
    path, checkpoint = found
    stored = pickles.tensors_of(checkpoint["model_state_dict"], path.name)
    tensors, renamed, unused = strip(stored, "module.", "")
    if options.vqgan is None:
        tokenizer = vqgan.read(source) if vqgan.detect(source) else None
    else:  # by path, or as that of another teacher
        tokenizer = vqgan.read(find(options.vqgan, LoadOptions(offline=options.offline)))
    network = sizes(tensors, options, tokenizer, path.name)
    unused |= {key: "training state" for key in checkpoint if key != "model_state_dict"}
    if tokenizer is not None:
        tokenizer = tokenizer.at_length(network["length"])
        unused |= {f"VQGAN {name}": reason for name, reason in tokenizer.unused.items()}
    student = LATENT_WEIGHT in tensors
    config = ModelConfig(
        kind="student" if student else "teacher",
        name=source.name,
        network=network,
        process={"type": "masked", "symbols": network["symbols"], "schedule": "arccos"},
        latent=LatentConfig(dim=1, inject="token", features="sinusoid") if student else None,
        labels=network["labels"],
        codec={"type": "none"} if tokenizer is None else tokenizer.codec,
        sampling=SamplingConfig(sampler="confidence", steps=DEFAULT_STEPS, guidance=DEFAULT_GUIDANCE, tile=16),
        provenance={**source.origin, "format": NAME},
    )
    codec_tensors = None if tokenizer is None else tokenizer.tensors
    return Bundle(config, tensors, path.name, renamed, unused, codec_tensors=codec_tensors)


def sizes(
    tensors: dict[str, Tensor], options: LoadOptions, tokenizer: vqgan.ImageTokenizer | None, where: str
) -> dict[str, Any]:
    """Network settings from the shapes. The file tells neither the heads nor how many table rows are codes."""
    table, bias, inner = (
        tensors.get(name) for name in ("tok_emb.weight", "bias", "transformer.layers.0.1.fn.net.0.bias")
    )
    sound = table is not None and table.dim() == 2 and bias is not None and bias.dim() == 2 and len(bias) > 1
    if not sound or table is None or bias is None or inner is None or inner.dim() != 1:
        raise UserError(f"{where} lacks the tokens, the bias or the blocks of MaskGIT.", "Fetch it again.")
    rows, width = table.shape
    codes = options.codes or (tokenizer.settings["codes"] if tokenizer else rows - 2 - PUBLISHED_CLASSES)
    if not 1 <= codes <= rows - 2:
        hint = "Use `di4c convert` with --codes, or with --vqgan and the tokenizer."
        raise UserError(f"The token table of {where} does not tell its number of image codes.", hint)
    heads = options.heads or (PUBLISHED_HEADS if width == PUBLISHED_WIDTH else None)
    if heads is None:
        hint = "Use `di4c convert` with --heads and name what it writes."
        raise UserError(f"{where} does not record its number of attention heads.", hint)
    depth = len({name.split(".")[2] for name in tensors if name.startswith("transformer.layers.")})
    return {
        "type": "maskgit",
        "symbols": codes,
        "length": len(bias) - 1,
        "width": width,
        "depth": depth,
        "heads": heads,
        "mlp": len(inner),
        "labels": rows - 2 - codes,
        "dropout": 0.1,
    }
