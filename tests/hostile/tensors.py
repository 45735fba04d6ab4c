"""Changes of single tensors in a checkpoint, and what an accepted model must still give: probabilities."""

from __future__ import annotations

import json
import random
from collections.abc import Callable
from pathlib import Path
from typing import Any

import torch
from safetensors.torch import load_file, save_file

from di4c_cli import load
from tests.hostile.mutations import TEXTS, changed, json_text

SUFFIXES = (".safetensors", ".pt", ".pth", ".ckpt")
CHANGES: dict[str, Callable[[torch.Tensor], torch.Tensor | None]] = {
    "transposed": lambda t: t.flip(0).movedim(0, -1).contiguous() if t.ndim else t,
    "flattened": lambda t: t.flatten(),
    "NaN": lambda t: torch.full_like(t, float("nan"), dtype=torch.float32),
    "one NaN": lambda t: t.float().flatten().index_fill(0, torch.tensor([0]), float("nan")).view(t.shape),
    "infinite": lambda t: t / 0.0,
    "huge": lambda t: t * 1e30,
    "tiny": lambda t: t * 1e-30,
    "zero": torch.zeros_like,
    "bytes": lambda t: t.to(torch.int8),
    "long": lambda t: t.long(),
    "bool": lambda t: t > 0,
    "half": lambda t: t.half(),
    "bfloat16": lambda t: t.bfloat16(),
    "double": lambda t: t.double(),
    "huge double": lambda t: t.double() * 1e300,
    "complex": lambda t: t.to(torch.complex64),
    "empty": lambda t: t.flatten()[:0],
    "scalar": lambda t: t.flatten()[0].clone(),
    "gone": lambda t: None,
    "renamed": lambda t: t,
}


def change(path: Path, rng: random.Random) -> str:
    """One tensor with another shape, type, name or content."""
    safe = path.suffix == ".safetensors"
    tree: Any = load_file(path) if safe else torch.load(path, weights_only=True, map_location="cpu")
    table: Any = next((tree[key] for key in ("state_dict", "model_state_dict", "model") if key in tree), tree)
    name = rng.choice([key for key, value in table.items() if isinstance(value, torch.Tensor) and value.numel()])
    way = rng.choice(sorted(CHANGES))
    new = CHANGES[way](table[name])
    del table[name]
    if new is not None:
        table[rng.choice(TEXTS[:-9]) if way == "renamed" else name] = new
    if safe:
        save_file({key: value.contiguous() for key, value in tree.items()}, path)
    else:
        torch.save(tree, path, _use_new_zipfile_serialization=rng.random() < 0.7)
    return f"{path.name}: '{name}' {way}"


def change_adapter(folder: Path, rng: random.Random) -> str:
    """Another rank in files or settings, a factor without its other one, a weight of the base among those of λ."""
    path, rest, settings = (folder / name for name in ("adapter_model.safetensors", "model.safetensors", "config.json"))
    factors, own, tree = load_file(path), load_file(rest), json.loads(settings.read_text())
    name = rng.choice(sorted(factors))
    rank = rng.choice([0, 1, 3, 8, 1000])
    way = rng.choice(["rank", "rank everywhere", "settings", "alone", "elsewhere", "base weight", "change"])
    if way == "rank":
        factors[name] = torch.ones(rank, factors[name].shape[1])
    elif way == "rank everywhere":
        for key, value in factors.items():
            down = ".lora_A." in key
            factors[key] = torch.ones((rank, value.shape[1]) if down else (value.shape[0], rank))
        tree["adapter"]["rank"] = rank
    elif way == "settings":
        key = rng.choice(["rank", "alpha", "targets"])
        tree["adapter"][key] = changed(tree["adapter"][key], rng)
    elif way == "alone":
        del factors[name]
    elif way == "elsewhere":
        target = rng.choice(["x", "", ".", "base_model.model.", "latent_x", TEXTS[10]])
        factors[f"{target}.lora_A.weight" if rng.random() < 0.7 else target] = factors.pop(name)
    elif way == "base weight":
        layer = name.removeprefix("base_model.model.").rpartition(".lora_")[0]
        own[f"{layer}.weight"] = torch.ones(rng.choice([1, 64]), rng.choice([1, 64]))
    else:
        return change(rng.choice([path, rest]), rng)
    save_file({key: value.contiguous() for key, value in factors.items()}, path)
    save_file(own, rest)
    settings.write_bytes(json_text(tree, rng))
    return f"adapter: {way} {rank}"


@torch.no_grad()
def problems(folder: Path) -> list[str]:
    """What is wrong with the probabilities of an accepted model."""
    try:
        model = load(str(folder))
        shape, states = (2, model.denoiser.length), model.denoiser.process.states
        x = torch.randint(0, states, shape, generator=torch.Generator().manual_seed(0))
        log_probs = model.log_probs(x, torch.tensor([0.99, 0.01]))
    except Exception as error:
        return [f"accepted, but {type(error).__name__}: {error}"]
    total = log_probs.double().exp().sum(-1)
    close = torch.allclose(total, torch.ones_like(total), atol=1e-3)
    return [] if close else ["probabilities do not sum to one"]
