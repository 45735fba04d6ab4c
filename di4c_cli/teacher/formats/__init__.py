"""Checkpoint formats, told apart by content; each has `NAME`, `detect(source)`, `read(source, options)`."""

from __future__ import annotations

import re
from collections.abc import Callable
from difflib import get_close_matches
from typing import Any

from di4c_cli.errors import UserError
from di4c_cli.teacher.bundle import TokenizerOnly
from di4c_cli.teacher.formats import maskgit, own, tauldr, vqgan
from di4c_cli.teacher.formats.bert import BERT, ESM, ROBERTA
from di4c_cli.teacher.formats.dit import DUO, MDLM, SDTT, SdttStudent
from di4c_cli.teacher.formats.llama import A2D, DREAM, LLADA
from di4c_cli.teacher.model_files import ModelFiles

BY_CONFIG: tuple[Any, ...] = (SDTT, MDLM, DUO, LLADA, DREAM, A2D, BERT, ROBERTA, ESM)
FORMATS: tuple[Any, ...] = (own, *BY_CONFIG, SdttStudent(), maskgit, tauldr)
"""The order of detection: formats that need no checkpoint to be opened come first."""


def find(source: ModelFiles, extra: Callable[[], tuple[Any, ...]] = tuple) -> Any:
    """The format of a model; `extra` gives those of installed packages, which are tried last."""
    for candidates in (lambda: FORMATS, extra):
        for candidate in candidates():
            if candidate.detect(source):
                return candidate
    if vqgan.detect(source):
        hint = "Use `di4c convert` on a MaskGIT transformer with --vqgan."
        raise TokenizerOnly(f"{source.name} is an image tokenizer, not a teacher.", hint)
    if source.unreadable:
        raise source.unreadable[0]
    tree = source.tree(lambda tree: isinstance(tree.get("model_type"), str))
    near = _nearest_by_tensors(source)
    if tree is not None:
        raise _unknown_type(source.name, tree["model_type"], near)
    if near is not None:
        problem = f"{source.name} has no configuration that di4c knows; the nearest family is {near[0]}: {near[1]}."
        raise UserError(problem, "Put the config.json that its weights came with beside them.")
    names = ", ".join(path.name for path in source.files[:4]) or "nothing"
    problem = f"{source.name} holds no config.json and no checkpoint of a known format, but {names}."
    raise UserError(problem, f"Known formats: {', '.join(known.NAME for known in FORMATS)}.")


NEAREST = (
    (r"llada.*moe|llada_?2", "llada", "its MLPs are mixtures of experts"),
    (r"sdar|bd3lm|block", "mdlm", "it writes block after block"),
    (r"sedd|radd", "mdlm", "it gives scores and not probabilities"),
    (r"bert|electra|mpnet", "bert", "its blocks are built otherwise"),
    (r"t5|bart|encoder|decoder", "bert", "it has an encoder and a decoder"),
    (r"gpt|llama|qwen|mistral|gemma|phi|olmo|bloom|opt", "a2d", "its attention is causal"),
)
"""Patterns of model types, the nearest family, and what differs."""


_SHARED = r"embed_\w+\.weight|(embed_)?norm\.(weight|bias)|(norm[12]|self_attn\.[qkvo]_proj)\.(weight|bias)"
_LLAMA = rf"{_SHARED}|(lm_head|self_attn\.[qk]_norm|mlp\.(gate|up|down)_proj)\.weight"
_BERT = rf"{_SHARED}|lm_bias|(transform\w*|lm_head|mlp\.(up|down)_proj)\.(weight|bias)"
"""Names of tensors in the two networks, without the numbers of blocks."""


def _unknown_type(name: str, model_type: str, near: tuple[str, str] | None) -> UserError:
    like = get_close_matches(model_type, [known.NAME for known in BY_CONFIG], 1, 0.0)[0]
    found = (entry[1:] for entry in NEAREST if re.search(entry[0], model_type.lower()))
    family, difference = next(found, near or (like, "its configuration is another one"))
    problem = f"{name} is a model of the type '{model_type[:40]}'; the nearest family is {family}, but {difference}."
    return UserError(problem, f"Known formats: {', '.join(known.NAME for known in FORMATS)}.")


def _nearest_by_tensors(source: ModelFiles) -> tuple[str, str] | None:
    """The family of masked language models that has a place for most tensors, and what differs; None if none has."""
    names = sorted({name for _, held in source.headers for name in held if "." in name})
    best: tuple[int, str, list[str]] | None = None
    for family, network in ((A2D, _LLAMA), (LLADA, _LLAMA), (BERT, _BERT), (ESM, _BERT)):
        ours = {re.sub(r"^layers\.\d+\.", "", family.our_name(name)): name for name in names}
        strange = [name for own, name in ours.items() if not re.fullmatch(network, own)]
        fitting = len(ours) - len(strange)
        if fitting > 4 and (best is None or fitting > best[0]):
            best = fitting, family.NAME, strange
    if best is None:
        return None
    shown = ", ".join(name[:80] for name in best[2][:2])
    return best[1], f"it has {shown}" if shown else "its tensors have the same names under another model_type"


def recipe_by_config(source: ModelFiles) -> str | None:
    """The recipe for a model whose configuration tells its format; None where the weights are needed too."""
    if own.detect(source):
        return own.recipe(source)
    return next((known.RECIPE for known in BY_CONFIG if source.tree(known.is_config)), None)
