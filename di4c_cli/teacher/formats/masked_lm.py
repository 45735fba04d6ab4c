"""Masked language models as transformers writes them: config.json, whole or sharded weights, a tokenizer beside them.

Nothing of `auto_map` is read. The published vocabulary has the mask anywhere and may have rows without a token. Here,
once, its rows are put in our order (symbols, then the mask), and rows without a token are left out.
"""

from __future__ import annotations

import re
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import torch
from torch import Tensor

from di4c_cli import limits
from di4c_cli.config import ModelConfig
from di4c_cli.errors import UserError
from di4c_cli.foreign.regular import is_regular
from di4c_cli.foreign.tokenizer import vocabulary
from di4c_cli.model_folder import check_file_size
from di4c_cli.network.rotary import Rotary
from di4c_cli.sampler.config import SamplingConfig
from di4c_cli.teacher import pickles
from di4c_cli.teacher.bundle import Bundle, LoadOptions, require
from di4c_cli.teacher.model_files import ModelFiles

Tree = dict[str, Any]
TOKEN_TABLE, HEAD, HEAD_BIAS, ROTARY = "embed_tokens.weight", "lm_head.weight", "lm_bias", "rotary_emb.inv_freq"
MASK_TOKENS = ("[MASK]", "<mask>", "<|mask|>", "<|mdm_mask|>", "<|MASK|>")
"""Names of the mask in published tokenizers."""
MAX_DEFAULT_LENGTH, DEFAULT_STEPS = 1024, 64
"""Of a sample, unless the user wants more: contexts of 32 768 positions are no sample's length."""
FETCH_AGAIN = "Fetch the file again."
NOT_KEPT = {
    HEAD: "tied to the token table",
    "lm_head.bias": "the same as the other bias of the head",
    "embed_positions.weight": "the positions are rotary",
    "embed_types.weight": "row 0 is part of the positions",
}
"""Tensors without a place of their own in the network, and why."""


@dataclass(frozen=True)
class Family:
    """One format: how its configurations are recognised, its tensors renamed, its settings found."""

    NAME: str
    is_config: Callable[[Tree], bool]
    renames: tuple[tuple[str, str], ...]
    left_out: tuple[tuple[str, str], ...]
    """Patterns of tensors that have no place in the network, and the reason."""
    settings: Callable[[Tree, dict[str, Tensor], LoadOptions, str], Tree]
    """(configuration, tensors, options, file name) -> network settings; may change the tensors."""
    RECIPE: str = "masked-lm"

    def detect(self, source: ModelFiles) -> bool:
        """By the configuration; `read` says what is wrong with the weights."""
        return source.tree(self.is_config) is not None and bool(source.kind("safetensors") + source.kind("pickle"))

    def read(self, source: ModelFiles, options: LoadOptions) -> Bundle:
        """The teacher, its vocabulary in our order."""
        tree = source.tree(self.is_config)
        assert tree is not None
        where, stored = stored_tensors(source)
        tensors, renamed, unused = self._renamed(stored, where)
        table = tensors.get(TOKEN_TABLE)
        if table is None or table.dim() != 2 or len(table) < 2:
            raise UserError(f"{where} lacks the token table of {self.NAME}.", FETCH_AGAIN)
        codec, folder, entries = find_tokenizer(source, options, self.NAME)
        mask = mask_id(tree, entries, len(table), where)
        used = max(entries.values(), default=len(table) - 1) + 1
        if used > len(table):
            problem = f"The tokenizer has ids up to {used - 1}, {where} only {len(table)} rows."
            raise UserError(problem, "Use the tokenizer that the model was trained with.")
        if folder is not None:
            codec["mask_id"] = mask
        network = self.settings(tree, tensors, options, where)
        network["symbols"] = used - (mask < used)
        padding = network.get("padding")
        if padding is not None:
            network["padding"] = padding - (padding > mask) if padding < used and padding != mask else None
        if network["tied"]:
            tensors.pop(HEAD, None)
        for name in {TOKEN_TABLE, HEAD, HEAD_BIAS} & tensors.keys():
            rows = tensors[name]
            if rows.shape[:1] != table.shape[:1]:
                raise UserError(f"{where}: '{name}' has not one row for each token.", FETCH_AGAIN)
            tensors[name] = torch.cat((rows[: min(mask, used)], rows[mask + 1 : used], rows[mask : mask + 1]))
        unused |= {renamed.pop(name): NOT_KEPT[name] for name in renamed.keys() - tensors.keys()}
        if used < len(table):
            unused[f"{renamed[TOKEN_TABLE]}[{used}:]"] = "rows without a token"
        config = ModelConfig(
            kind="teacher",
            name=source.name,
            network=network,
            process={"type": "masked", "symbols": network["symbols"], "schedule": "linear"},
            codec=codec,
            sampling=SamplingConfig(steps=DEFAULT_STEPS, tile=1),
            provenance={**source.origin, "format": self.NAME},
        )
        limits.check(config)  # before a table is made from the configuration's numbers
        if "rope_base" in network and ROTARY not in tensors:
            width = network.get("head_width") or network["width"] // network["heads"]
            tensors[ROTARY] = Rotary(width, network["rope_base"]).inv_freq
        return Bundle(config, tensors, where, renamed, unused, folder)

    def our_name(self, name: str) -> str:
        """The name of a tensor in our network."""
        for pattern, replacement in self.renames:
            name = re.sub(pattern, replacement, name)
        return name

    def _renamed(self, stored: dict[str, Tensor], where: str) -> tuple[Tree, dict[str, str], dict[str, str]]:
        """Tensors under our names, their published names, and the reasons for those left out."""
        tensors: Tree = {}
        renamed: dict[str, str] = {}
        unused: dict[str, str] = {}
        for name, tensor in stored.items():
            ours = self.our_name(name)
            reason = next((reason for pattern, reason in self.left_out if re.search(pattern, ours)), None)
            if reason is not None:
                unused[name] = reason
            elif ours in tensors:
                raise UserError(f"{where} holds '{ours}' twice.", FETCH_AGAIN)
            else:
                tensors[ours], renamed[ours] = tensor, name
        return tensors, renamed, unused


def has_type(*types: str) -> Callable[[Tree], bool]:
    """A configuration of one of these model types."""
    return lambda tree: tree.get("model_type") in types


def stored_tensors(source: ModelFiles) -> tuple[str, dict[str, Tensor]]:
    """All tensors of the model: of one safetensors file, of the shards that an index lists, or of a pickle."""
    shards = source.shards()
    check_file_size(*shards)
    found: dict[str, Tensor] = {}
    for path in shards:
        part = _tensors_at(source, path)
        if twice := found.keys() & part.keys():
            raise UserError(f"{path.name} holds '{min(twice)}', which another shard has too.", FETCH_AGAIN)
        found |= part
    if shards:
        return f"{source.name} ({len(shards)} shards)", found
    for kind, usual in (("safetensors", "model.safetensors"), ("pickle", "pytorch_model.bin")):
        paths = [path for path in source.kind(kind) if source.named in (None, path)]
        paths = [path for path in paths if path.name == usual] or paths
        top = min((len(path.parts) for path in paths), default=0)
        if chosen := source.only([path for path in paths if len(path.parts) == top]):
            return chosen.name, _tensors_at(source, chosen)
    raise UserError(f"{source.name} holds no weights.", "Name a complete model folder.")


def _tensors_at(source: ModelFiles, path: Path) -> dict[str, Tensor]:
    if path in source.kind("safetensors"):
        return source.tensors(path)
    tree = pickles.read_pickle(path)
    return pickles.tensors_of(tree.get("state_dict", tree), path.name)


def find_tokenizer(source: ModelFiles, options: LoadOptions, family: str) -> tuple[Tree, Path | None, dict[str, int]]:
    """The codec's entry, the folder of its file, and the entries of the vocabulary; none without a tokenizer."""
    files = [path for name in ("tokenizer.json", "vocab.txt") for path in source.files if path.name == name]
    for path in files[:1] if options.tokenizer is None else [Path(options.tokenizer)]:
        if not is_regular(path):
            raise UserError(f"There is no tokenizer file {path}.", "Name a tokenizer.json.")
        return {"type": "text", "file": path.name}, path.parent, vocabulary(path)
    return {"type": "text", "name": family}, None, {}


def mask_id(tree: Tree, entries: dict[str, int], rows: int, where: str) -> int:
    """The mask's published id: the configuration's, or that of a usual name in the tokenizer."""
    found = tree.get("mask_token_id")
    if found is None:
        found = next((entries[name] for name in MASK_TOKENS if name in entries), None)
    if found is None:
        hint = "Write mask_token_id into its config.json."
        raise UserError(f"{where}: neither config.json nor the tokenizer says which token is the mask.", hint)
    if type(found) is not int or not 0 <= found < rows:
        raise UserError(f"{where}: the mask id {found!r} is not one of its {rows} rows.", "Check its config.json.")
    return found


def demand(tree: Tree, wanted: Tree, where: str) -> None:
    """Reject a configuration that switches on what our network does not have."""
    for key, value in wanted.items():
        if tree.get(key, value) not in (value, None):
            problem = f"{where} has {key} {str(tree[key])[:40]!r}, and the models of this family have {value!r}."
            raise UserError(problem, "di4c has no network for it.")


def first_of(tree: Tree, kind: type, where: str, *keys: str) -> Any:
    """The value of the first key that a configuration has: families call one thing by several names."""
    return require(tree, next((key for key in keys if key in tree), keys[0]), kind, where)


def shared_settings(tree: Tree, tensors: dict[str, Tensor], options: LoadOptions, where: str) -> Tree:
    """Sizes that all families have."""
    claimed = first_of(tree, int, where, "max_position_embeddings", "max_sequence_length")
    return {
        "length": options.length or min(claimed, MAX_DEFAULT_LENGTH),
        "width": first_of(tree, int, where, "hidden_size", "d_model"),
        "depth": len({name.split(".")[1] for name in tensors if name.startswith("layers.")}),
        "heads": first_of(tree, int, where, "num_attention_heads", "n_heads"),
        "mlp": first_of(tree, int, where, "intermediate_size", "mlp_hidden_size"),
    }
