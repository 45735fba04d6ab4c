"""Peak memory of one training step of an adapter on a random network of 98 M weights; prints one JSON object.

    python -m benchmarks.lora_memory [key=value of the recipe ...]

The C library's heap keeps holes where float32 weights were, which no tensor uses and no GPU has; so every tensor gets
pages of its own, which are returned when it is freed. `--heap` measures with the heap as it is.
"""

from __future__ import annotations

import argparse
import ctypes
import gc
import json
from dataclasses import asdict
from pathlib import Path

import torch
import yaml

from di4c_cli import recipe_file
from di4c_cli.build import build_denoiser
from di4c_cli.config import ModelConfig
from di4c_cli.data.items import TensorItems
from di4c_cli.data.stream import Shuffled
from di4c_cli.memory import peak_memory, reset_peak_memory
from di4c_cli.model import Model
from di4c_cli.network.lora import halve_frozen
from di4c_cli.recipe import Recipe
from di4c_cli.training.estimate import estimate
from di4c_cli.training.loop import RunContext, TrainingLoop
from di4c_cli.training.plan import make_batch_plan
from di4c_cli.training.processes import StopRequest, make_accelerator
from di4c_cli.training.round_data import data_spec
from di4c_cli.training.student_init import adapter_student, build_method, student_config

M_MMAP_THRESHOLD = -3
"""Of malloc.h: blocks of this many bytes or more get pages of their own."""
SYMBOLS = 8191
NETWORK = {"type": "llama", "symbols": SYMBOLS, "length": 64, "width": 768, "depth": 12, "heads": 12, "mlp": 2048}
PROCESS = {"type": "masked", "symbols": SYMBOLS, "schedule": "linear"}


def resident() -> int:
    """Bytes of this process now."""
    return int(Path("/proc/self/statm").read_text().split()[1]) * 4096


def two_steps(recipe: Recipe, network: dict[str, object]) -> dict[str, int]:
    """Two steps of the real loop; the base's weights and the estimate in bytes, the peak of the second step."""
    config = ModelConfig(kind="teacher", name="random", network=network, process=PROCESS, codec={"type": "none"})
    model = Model(config, build_denoiser(config))
    own = student_config(model, recipe, 1)
    student = adapter_student(model.denoiser, own, recipe, 1)
    assert own.adapter is not None
    if own.adapter.base_precision == "bf16":
        halve_frozen(student.network)
    method = build_method(recipe, student, model.denoiser, 1)
    context = RunContext(Path(), None, StopRequest(loud=False), lambda row: None, lambda *_: None, lambda text: None)
    items = TensorItems(torch.randint(SYMBOLS, (2, 64)), None)
    accelerator = make_accelerator(recipe.training.precision, "cpu", [], Path())
    loop = TrainingLoop(accelerator, recipe, 1, method, Shuffled(items, data_spec(recipe, model, 1)), context)
    loop.step()
    reset_peak_memory()
    loop.step()
    memory = estimate(own, config, recipe, make_batch_plan(recipe.training.batch, None, 1))
    return {"peak": peak_memory(), "base": memory.teacher, "estimate": memory.total, **asdict(memory)}


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("settings", nargs="*", help="key=value of the recipe")
    parser.add_argument("--heap", action="store_true", help="leave the C library's heap as it is")
    options = parser.parse_args()
    if not options.heap:
        ctypes.CDLL(None).mallopt(M_MMAP_THRESHOLD, 1 << 16)
    pairs = (word.partition("=") for word in options.settings)
    given = {key: yaml.safe_load(value) for key, _, value in pairs}
    recipe = recipe_file.read("masked-lm", {"training.adapter.rank": 16, "method.latents": 2, **given})
    assert isinstance(recipe, Recipe)
    two_steps(recipe, NETWORK | {"width": 48, "depth": 1, "mlp": 48})  # libraries, thread pools, compiled kernels
    gc.collect()
    before = resident()
    found = two_steps(recipe, NETWORK)
    found["peak"] -= before
    found["limit"] = int(1.35 * found["base"]) + found["activations"] + found["loss_chunk"]
    print(json.dumps(found))
    raise SystemExit(found["peak"] >= found["limit"])


if __name__ == "__main__":
    main()
