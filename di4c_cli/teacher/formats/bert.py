"""BERT, RoBERTa and ESM-2 with their masked-language-model heads, in the layout of transformers of any age."""

from __future__ import annotations

from typing import Any

from torch import Tensor

from di4c_cli.errors import UserError
from di4c_cli.teacher.bundle import LoadOptions
from di4c_cli.teacher.formats.masked_lm import (
    FETCH_AGAIN,
    HEAD_BIAS,
    Family,
    Tree,
    demand,
    first_of,
    has_type,
    shared_settings,
)

POSITIONS, TYPES, DECODER_BIAS = "embed_positions.weight", "embed_types.weight", "lm_head.bias"
ACTIVATION_NAMES = {"gelu_pytorch_tanh": "gelu_new", "gelu_fast": "gelu_new", "swish": "silu"}
NAMES = (
    (r"^(bert|roberta|esm)\.", ""),
    (r"\.gamma$", ".weight"),  # of the first BERT checkpoints
    (r"\.beta$", ".bias"),
    (r"^embeddings\.word_embeddings\.", "embed_tokens."),
    (r"^embeddings\.position_embeddings\.", "embed_positions."),
    (r"^embeddings\.token_type_embeddings\.", "embed_types."),
    (r"^embeddings\.(LayerNorm|layer_norm)\.", "embed_norm."),
    (r"^encoder\.emb_layer_norm_after\.", "norm."),
    (r"^(encoder\.layer\.0\.attention\.self\.)?rotary_embeddings\.", "rotary_emb."),
    (r"^encoder\.layer\.", "layers."),
    (r"\.attention\.self\.([qkv])(uery|ey|alue)\.", r".self_attn.\1_proj."),
    (r"\.attention\.output\.dense\.", ".self_attn.o_proj."),
    (r"\.attention\.(output\.)?LayerNorm\.", ".norm1."),
    (r"\.intermediate\.dense\.", ".mlp.up_proj."),
    (r"\.output\.dense\.", ".mlp.down_proj."),
    (r"^(layers\.\d+)\.(output\.)?LayerNorm\.", r"\1.norm2."),
    (r"^(cls\.predictions\.transform|lm_head)\.dense\.", "transform."),
    (r"^(cls\.predictions\.transform\.LayerNorm|lm_head\.layer_norm)\.", "transform_norm."),
    (r"^(cls\.predictions|lm_head)\.bias$", "lm_bias"),
    (r"^(cls\.predictions|lm_head)\.decoder\.", "lm_head."),
)
LEFT_OUT = (
    (r"^pooler\.", "the pooling layer"),
    (r"^cls\.seq_relationship\.", "the next-sentence head"),
    (r"^contact_head\.", "the contact head"),
    (r"^embeddings\.position_ids$", "0, 1, 2, …"),
    (r"^layers\.\d+\.attention\.self\.rotary_embeddings\.", "the same in every block"),
)


def is_bert(tree: Tree) -> bool:
    """BERT's configuration; those of 2019 have no `model_type`."""
    keys = {"hidden_size", "intermediate_size", "max_position_embeddings", "type_vocab_size", "vocab_size"}
    return tree.get("model_type") == "bert" or ("model_type" not in tree and keys <= tree.keys())


def settings(tree: Tree, tensors: dict[str, Tensor], options: LoadOptions, where: str) -> Tree:
    """Network settings; the row of token type 0, which every token has, becomes part of the positions."""
    kind, rotary = tree.get("model_type", "bert"), tree.get("position_embedding_type") == "rotary"
    demand(tree, {"is_decoder": False, "add_cross_attention": False}, where)
    demand({} if rotary else tree, {"position_embedding_type": "absolute"}, where)
    if "transform.weight" not in tensors:
        raise UserError(f"{where} has no masked-language-model head.", "Use the checkpoint before its fine-tuning.")
    found = shared_settings(tree, tensors, options, where)
    tied, decoder_bias = tree.get("tie_word_embeddings", True), tensors.pop(DECODER_BIAS, None)
    if decoder_bias is not None and (not tied or HEAD_BIAS not in tensors):
        tensors[HEAD_BIAS] = decoder_bias  # a tied head has two biases of the same values, another uses this one
    padding: Any = tree.get("pad_token_id", 0 if kind == "bert" else 1)
    table = tensors.pop(POSITIONS, None)
    impossible = UserError(f"{where} has a padding of the impossible id {padding!r}.", "Check its config.json.")
    if not (type(padding) is int and padding >= 0) and not (rotary and padding is None):
        raise impossible
    if not rotary:
        types, row = tensors.pop(TYPES, None), (found["width"],)
        sound = types is None or (types.shape[1:] == row and len(types))
        if table is None or table.shape[1:] != row or not sound:
            raise UserError(f"{where} lacks its positions or their types.", FETCH_AGAIN)
        if padding is None or padding >= len(table):
            raise impossible
        if kind != "bert":  # row `padding` stands for padding, the next one for the first position
            table = table[padding:]
        length = min(options.length or len(table), len(table) - (kind != "bert"))
        found["length"], table = length, table[: length + (kind != "bert")]
        tensors[POSITIONS] = table if types is None else table + types[0]
    activation = str(tree.get("hidden_act", "gelu"))
    activation = "gelu" if kind == "esm" else ACTIVATION_NAMES.get(activation, activation)
    return found | {
        "type": "bert",
        "positions": "rotary" if rotary else "learned" if kind == "bert" else "counted",
        "padding": padding,
        "pre_norm": kind == "esm",
        "embed_norm": kind != "esm" or bool(tree.get("emb_layer_norm_before")),
        "token_dropout": kind == "esm" and bool(tree.get("token_dropout", True)),
        "activation": activation,
        "head_activation": activation if kind == "bert" else "gelu",
        "eps": first_of({"layer_norm_eps": 1e-12, **tree}, float, where, "layer_norm_eps"),
        "tied": tied,
        **({"rope_base": first_of({"rope_theta": 10000.0, **tree}, float, where, "rope_theta")} if rotary else {}),
    }


BERT = Family("bert", is_bert, NAMES, LEFT_OUT, settings)
ROBERTA = Family("roberta", has_type("roberta", "xlm-roberta", "camembert"), NAMES, LEFT_OUT, settings)
ESM = Family("esm", has_type("esm"), NAMES, LEFT_OUT, settings)
