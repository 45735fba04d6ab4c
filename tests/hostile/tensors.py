"""Changes of single tensors in a checkpoint, and what an accepted model must still give: probabilities."""

from __future__ import annotations

import random
from collections.abc import Callable
from pathlib import Path
from typing import Any

import torch
from safetensors.torch import load_file, save_file

from di4c_cli import load
from tests.hostile.mutations import TEXTS

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
    changed = CHANGES[way](table[name])
    del table[name]
    if changed is not None:
        table[rng.choice(TEXTS[:-9]) if way == "renamed" else name] = changed
    if safe:
        save_file({key: value.contiguous() for key, value in tree.items()}, path)
    else:
        torch.save(tree, path, _use_new_zipfile_serialization=rng.random() < 0.7)
    return f"{path.name}: '{name}' {way}"


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
