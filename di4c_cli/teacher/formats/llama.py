"""Llama-like masked language models: LLaDA, Dream and DiffuCoder, and the adapted Llama and Qwen models of dLLM.

Facts from public code: LLaDA's tensors and keys (`d_model`, `n_kv_heads`, …) are OLMo's; Dream is Qwen2 with logits
shifted by one position; `a2d-*` are the transformers classes without the causal mask.
"""

from __future__ import annotations

from torch import Tensor

from di4c_cli.teacher.bundle import LoadOptions
from di4c_cli.teacher.formats.masked_lm import HEAD, Family, Tree, demand, first_of, has_type, shared_settings

NAMES = (
    (r"^model\.(transformer\.)?", ""),
    (r"\.input_layernorm\.|\.attn_norm\.", ".norm1."),
    (r"\.post_attention_layernorm\.|\.ff_norm\.", ".norm2."),
    (r"^wte\.", "embed_tokens."),
    (r"^ln_f\.", "norm."),
    (r"^ff_out\.", "lm_head."),
    (r"^(blocks\.\d+)\.([qkv]_proj)\.", r"\1.self_attn.\2."),
    (r"\.attn_out\.", ".self_attn.o_proj."),
    (r"\.ff_proj\.", ".mlp.gate_proj."),
    (r"^(blocks\.\d+)\.up_proj\.", r"\1.mlp.up_proj."),
    (r"\.ff_out\.", ".mlp.down_proj."),
    (r"^blocks\.", "layers."),
)
LEFT_OUT = ((r"rotary_emb\.inv_freq$", "computed from the rotary base"),)
SWITCHES: Tree = {
    "block_type": "llama",
    "activation_type": "silu",
    "layer_norm_type": "rms",
    "rope": True,
    "alibi": False,
    "attention_layer_norm": False,
    "block_group_size": 1,
    "input_emb_norm": False,
    "scale_logits": False,
    "hidden_act": "silu",
    "use_sliding_window": False,
    "rope_scaling": None,
    "rope_type": "default",
}
"""Settings of these configurations, and the values for which we have a network."""


def settings(tree: Tree, tensors: dict[str, Tensor], options: LoadOptions, where: str) -> Tree:
    """Network settings; what only the tensors tell is read off them. `rope_parameters` is of transformers 5."""
    rope = tree.get("rope_parameters")
    tree = {**tree, **rope} if isinstance(rope, dict) else tree
    demand(tree, SWITCHES, where)
    found = shared_settings(tree, tensors, options, where)
    full = str(["full_attention"] * found["depth"])
    demand({"layer_types": str(tree.get("layer_types", full))}, {"layer_types": full}, where)
    block = "layers.0.self_attn"
    return found | {
        "type": "llama",
        "eps": first_of(tree, float, where, "rms_norm_eps"),
        "kv_heads": tree.get("n_kv_heads", tree.get("num_key_value_heads")) or found["heads"],
        "head_width": tree.get("head_dim"),
        "rope_base": first_of(tree, float, where, "rope_theta"),
        "qkv_bias": f"{block}.q_proj.bias" in tensors,
        "out_bias": f"{block}.o_proj.bias" in tensors,
        "qk_norm": f"{block}.q_norm.weight" in tensors,
        "tied": tree.get("weight_tying", tree.get("tie_word_embeddings", HEAD not in tensors)),
        "shift": tree.get("model_type") == "Dream",
    }


LLADA = Family("llada", has_type("llada"), NAMES, LEFT_OUT, settings)
DREAM = Family("dream", has_type("Dream"), NAMES, LEFT_OUT, settings)
A2D = Family("a2d", has_type("a2d-llama", "a2d-qwen2", "a2d-qwen3"), NAMES, LEFT_OUT, settings)
