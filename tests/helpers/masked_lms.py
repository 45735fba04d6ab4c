"""Small masked language models of every published layout, made by the classes of transformers.

`python -m tests.helpers.masked_lms tests/golden` writes the golden sets: weights, configuration, tokenizer, ids and
the logits that transformers gives for them.
"""

from __future__ import annotations

import json
import re
import sys
from pathlib import Path
from typing import Any

import torch
from safetensors.torch import save_file
from torch import Tensor, nn

ROWS, LENGTH, PADDING = 40, 12, 1
MASK = {"llada": 33, "dream": 30, "a2d": 36, "bert": 4, "roberta": 37, "esm": 32}
"""The mask's id: before, among and behind the other tokens."""
USED = {"llada": 36, "dream": 31, "a2d": 37, "bert": 40, "roberta": 38, "esm": 33}
"""Ids with a token; the other rows of the table are unused."""
SIZES = {"hidden_size": 16, "intermediate_size": 24, "num_hidden_layers": 2, "num_attention_heads": 4}
LLADA_NAMES = (
    ("model.embed_tokens", "model.transformer.wte"),
    ("lm_head", "model.transformer.ff_out"),
    ("model.norm", "model.transformer.ln_f"),
    ("model.layers", "model.transformer.blocks"),
    ("self_attn.o_proj", "attn_out"),
    ("self_attn.", ""),
    ("mlp.gate_proj", "ff_proj"),
    ("mlp.up_proj", "up_proj"),
    ("mlp.down_proj", "ff_out"),
    ("input_layernorm", "attn_norm"),
    ("post_attention_layernorm", "ff_norm"),
)


def make(kind: str, seed: int = 0, **options: Any) -> nn.Module:
    """A random model of transformers; all of its tensors are random, norms and biases too."""
    import transformers as hf

    tied = {"llada": False, "dream": False, "a2d": True}.get(kind, True)
    given: dict[str, Any] = {**SIZES, "vocab_size": ROWS, "tie_word_embeddings": tied, "pad_token_id": PADDING}
    if kind in ("llada", "dream", "a2d"):
        given |= {"num_key_value_heads": 2, "rope_theta": 5e4, "max_position_embeddings": LENGTH}
    else:
        given |= {"max_position_embeddings": LENGTH if kind == "bert" else LENGTH + PADDING + 1, "hidden_act": "gelu"}
    if kind == "esm":
        given |= {"position_embedding_type": "rotary", "token_dropout": True, "mask_token_id": MASK[kind]}
    names = {"llada": "Llama", "dream": "Qwen2", "a2d": "Qwen3", "bert": "Bert", "roberta": "Roberta", "esm": "Esm"}
    head = "ForMaskedLM" if kind in ("bert", "roberta", "esm") else "ForCausalLM"
    config = getattr(hf, f"{names[kind]}Config")(**(given | options))
    torch.manual_seed(seed)
    model: nn.Module = getattr(hf, names[kind] + head)(config)
    with torch.no_grad():
        for name, parameter in model.named_parameters():
            one = 1.0 if parameter.dim() == 1 and "norm" in name.lower() and "bias" not in name else 0.0
            parameter.normal_(one, 0.3)
    return model.eval()


@torch.no_grad()
def logits(kind: str, model: nn.Module, ids: Tensor) -> Tensor:
    """What transformers gives for `ids` (B, D), attention made bidirectional; Dream's shift included."""
    if kind in ("bert", "roberta", "esm"):
        out: Tensor = model(ids, attention_mask=(ids != PADDING).long()).logits
        return out
    full = torch.zeros(len(ids), 1, ids.shape[1], ids.shape[1])
    out = model(ids, attention_mask=full, use_cache=False).logits
    return torch.cat((out[:, :1], out[:, :-1]), 1) if kind == "dream" else out


def tokenizer_tree(kind: str) -> dict[str, Any]:
    """A tokenizer.json of words `w0 w1 …`, the mask among them."""
    words = {("<mask>" if id == MASK[kind] else f"w{id}"): id for id in range(USED[kind])}
    return {
        "version": "1.0",
        "added_tokens": [],
        "pre_tokenizer": {"type": "WhitespaceSplit"},
        "model": {"type": "WordLevel", "vocab": words, "unk_token": "w0"},
    }


def published(kind: str, model: nn.Module) -> tuple[dict[str, Any], dict[str, Tensor]]:
    """config.json and tensors under the published keys and names."""
    config = {key: value for key, value in model.config.to_dict().items() if value is not None}  # type: ignore[union-attr, operator]
    tensors = {name: tensor.clone().contiguous() for name, tensor in model.state_dict().items()}
    if config.get("tie_word_embeddings"):
        tensors.pop("lm_head.weight", None)
    config["model_type"] = {"dream": "Dream", "a2d": "a2d-qwen3"}.get(kind, kind)
    if kind == "dream":
        config["mask_token_id"] = MASK[kind]
    if kind == "llada":
        tensors = {_llada(name): tensor for name, tensor in tensors.items()}
        config = {
            "model_type": "llada",
            "auto_map": {"AutoModel": "modeling_llada.LLaDAModelLM"},
            "d_model": config["hidden_size"],
            "n_heads": config["num_attention_heads"],
            "n_kv_heads": config["num_key_value_heads"],
            "n_layers": config["num_hidden_layers"],
            "mlp_hidden_size": config["intermediate_size"],
            "max_sequence_length": LENGTH,
            "rope_theta": config["rope_parameters"]["rope_theta"],
            "rms_norm_eps": config["rms_norm_eps"],
            "weight_tying": config["tie_word_embeddings"],
            "vocab_size": ROWS,
            "embedding_size": ROWS,
            "mask_token_id": MASK[kind],
            "block_type": "llama",
            "activation_type": "silu",
            "layer_norm_type": "rms",
            "rope": True,
            "include_bias": False,
        }
    return config, tensors


def _llada(name: str) -> str:
    for theirs, llada in LLADA_NAMES:
        name = name.replace(theirs, llada, 1)
    return name


def write(folder: Path, kind: str, model: nn.Module) -> Path:
    """A model folder as its publishers would write it."""
    folder.mkdir(parents=True, exist_ok=True)
    config, tensors = published(kind, model)
    (folder / "config.json").write_text(json.dumps(config, indent=1, sort_keys=True) + "\n")
    (folder / "tokenizer.json").write_text(json.dumps(tokenizer_tree(kind), separators=(",", ":")) + "\n")
    save_file(tensors, folder / "model.safetensors", {"format": "pt"})
    return folder


def inputs(kind: str, seed: int = 0) -> Tensor:
    """Published ids (4, LENGTH): all kinds of tokens, a third of them masked; the last sample ends with padding."""
    generator = torch.Generator().manual_seed(seed)
    ids = torch.randint(5, USED[kind], (4, LENGTH), generator=generator)
    ids[torch.rand(ids.shape, generator=generator) < 0.33] = MASK[kind]
    if kind in ("bert", "roberta", "esm"):
        ids[-1, -4:] = PADDING
    return ids


def ours(kind: str, ids: Tensor) -> Tensor:
    """Published ids as those of our models."""
    symbols = USED[kind] - (MASK[kind] < USED[kind])
    return torch.where(ids == MASK[kind], symbols, ids - (ids > MASK[kind]).long())


def expected(kind: str, given: Tensor) -> Tensor:
    """Logits over the published vocabulary as those over our symbols."""
    kept = [id for id in range(USED[kind]) if id != MASK[kind]]
    return given[..., kept]


def main(root: Path) -> None:
    """Write the golden sets."""
    import transformers

    for kind in MASK:
        model = make(kind)
        folder = write(root / kind, kind, model)
        ids = inputs(kind)
        save_file({"ids": ids, "logits": logits(kind, model, ids)}, folder / "io.safetensors")
        version = re.sub(r"[^0-9.]", "", transformers.__version__)
        note = f"# {kind}\n\nA random model of transformers {version}, written by `tests/helpers/masked_lms.py`.\n"
        (folder / "README.md").write_text(note)


if __name__ == "__main__":
    main(Path(sys.argv[1]))
