"""The model folder of teachers and students: model.safetensors, config.json, README.md and the codec's file."""

from __future__ import annotations

import json
import shutil
from collections.abc import Callable, Iterable, Mapping
from pathlib import Path
from typing import Any

import torch
from safetensors import SafetensorError, safe_open
from safetensors.torch import save_file
from torch import Tensor

from di4c_cli import files
from di4c_cli.build import FLOAT_TYPES, assemble, check_fit
from di4c_cli.config import ADAPTER_FILES, FORMAT, ModelConfig, upgrade_tensor
from di4c_cli.denoiser import Denoiser
from di4c_cli.errors import UserError
from di4c_cli.limits import read_config
from di4c_cli.load_report import LoadReport
from di4c_cli.memory import physical_memory
from di4c_cli.network.lora import LATENT_PREFIX, is_adapter, merged
from di4c_cli.printable import storable

WEIGHTS_FILE = "model.safetensors"
ADAPTER_FILE, ADAPTER_CONFIG = ADAPTER_FILES
PEFT_PREFIX = "base_model.model."
"""Before the names of a network's tensors in PEFT's files."""
READ_ERRORS = (SafetensorError, OSError, ValueError, RuntimeError, TypeError, AttributeError)


def _read(path: Path, get: Callable[[Any, str], Tensor]) -> dict[str, Tensor]:
    try:
        with safe_open(path, framework="pt") as file:
            return {upgrade_tensor(name): get(file, name) for name in file.keys()}  # noqa: SIM118 (not a dict)
    except READ_ERRORS as error:
        raise UserError(f"{path} is not a readable safetensors file: {error}.", "Fetch it again.") from error


def read_shapes(path: Path) -> dict[str, Tensor]:
    """The tensors that a safetensors file claims to hold, on the meta device."""
    return _read(path, lambda file, name: torch.empty(file.get_slice(name).get_shape(), device="meta"))


def check_file_size(*paths: Path) -> None:
    """Reject files of weights that do not fit together into memory."""
    if sum(path.stat().st_size for path in paths) > physical_memory():
        larger = f"{paths[0]} is" if len(paths) == 1 else f"The {len(paths)} files beside {paths[0]} are"
        raise UserError(f"{larger} larger than this machine's memory.", "Use a machine with more memory.")


def read_tensors(path: Path) -> dict[str, Tensor]:
    """The tensors of a safetensors file as they are stored."""
    check_file_size(path)
    return _read(path, lambda file, name: file.get_tensor(name))


def weights_file(folder: Path, name: str = WEIGHTS_FILE) -> Path:
    """The weights of a model folder, or its file of another name."""
    if not (folder / name).is_file():
        raise UserError(f"{folder} has no {name}.", "Name a complete model folder.")
    return folder / name


def load_folder(folder: Path, base: Mapping[str, Tensor] | None = None) -> tuple[ModelConfig, Denoiser, LoadReport]:
    """The config, the denoiser in evaluation mode, and the report on every tensor; an adapter needs its `base`."""
    config, path = read_config(folder), weights_file(folder)
    if config.adapter is not None and base is not None:
        return config, *assemble(config, with_base(folder, config, base), str(path))
    check_fit(config, read_shapes(path), str(path))  # before any tensor is read
    return config, *assemble(config, read_tensors(path), str(path))


def read_adapter(folder: Path) -> dict[str, Tensor]:
    """The tensors of an adapter's folder by their names in the network: adapters and λ."""
    adapter = read_tensors(weights_file(folder, ADAPTER_FILE))
    found = {name.removeprefix(PEFT_PREFIX): value for name, value in adapter.items()}
    return found | read_tensors(weights_file(folder))


def with_base(folder: Path, config: ModelConfig, base: Mapping[str, Tensor]) -> dict[str, Tensor]:
    """The whole weights of an adapter's folder; one that does not fit the base is rejected."""
    assert config.adapter is not None
    own, rank = read_adapter(folder), config.adapter.rank
    for name, tensor in own.items():
        if name.startswith(LATENT_PREFIX) and not is_adapter(name):
            continue
        layer, _, kind = name.rpartition(".lora_")
        weight = base.get(f"{layer}.weight")
        both = f"{layer}.lora_A.weight" in own and f"{layer}.lora_B.weight" in own
        shape = tuple(weight.shape) if weight is not None and weight.dim() == 2 and both else (0, 0)
        expected = {"A.weight": (rank, shape[1]), "B.weight": (shape[0], rank)}.get(kind)
        if weight is None or tuple(tensor.shape) != expected or tensor.dtype not in FLOAT_TYPES:
            raise UserError(f"The adapter in {folder} does not fit its teacher: '{name}'.", "Name another teacher.")
        own[name] = tensor.to(weight.dtype)
    return merged(base, own, config.adapter)


def _adapter_config(config: ModelConfig, names: Iterable[str]) -> dict[str, Any]:
    """adapter_config.json in PEFT's keys."""
    assert config.adapter is not None
    layers = {name.removesuffix(".lora_A.weight") for name in names if ".lora_A." in name}
    return {
        "peft_type": "LORA",
        "base_model_name_or_path": config.provenance.get("teacher"),
        "r": config.adapter.rank,
        "lora_alpha": config.adapter.alpha,
        "lora_dropout": 0.0,
        "bias": "none",
        "fan_in_fan_out": False,
        "inference_mode": True,
        "target_modules": sorted(layers),
    }


def save_tensors(tensors: Mapping[str, Tensor], path: Path, metadata: Mapping[str, str] | None = None) -> None:
    """Write a safetensors file; equal tensors and metadata give equal bytes."""
    save_file(dict(tensors), path, dict(metadata or {}))
    with path.open("r+b") as file:  # the library writes the metadata in any order
        size = int.from_bytes(file.read(8), "little")
        header = json.loads(file.read(size))
        if "__metadata__" in header:
            header["__metadata__"] = dict(sorted(header["__metadata__"].items()))
        text = json.dumps(header, separators=(",", ":"), ensure_ascii=False).encode()
        if len(text) <= size:
            file.seek(8)
            file.write(text.ljust(size))


def save_folder(
    folder: Path,
    config: ModelConfig,
    trained: Denoiser | Mapping[str, Tensor],
    card: str,
    codec: Path | Mapping[str, Tensor] | None = None,
    dtype: torch.dtype | None = None,
) -> None:
    """Write a model folder completely or not at all; `codec` is the file that config.codec names, or its tensors.

    `trained` is the denoiser, or the trained tensors of an adapter.
    """
    state = trained.network.state_dict() if isinstance(trained, Denoiser) else trained
    tensors = {
        name: (tensor.to(dtype) if dtype is not None and tensor.is_floating_point() else tensor).cpu().contiguous()
        for name, tensor in state.items()
    }
    adapter = {name: tensors.pop(name) for name in list(tensors) if is_adapter(name)}
    settings = storable(config.model_dump(mode="json"))
    metadata = {"format": "pt", "di4c": str(FORMAT), "kind": config.kind, "name": settings["name"]}
    with files.new_folder(folder) as part:
        text = json.dumps(settings, indent=2, ensure_ascii=False)
        (part / "config.json").write_text(text + "\n", encoding="utf-8")
        (part / "README.md").write_text(storable(card), encoding="utf-8")
        save_tensors(tensors, part / WEIGHTS_FILE, metadata)
        if adapter:
            named = {f"{PEFT_PREFIX}{name}": tensor for name, tensor in adapter.items()}
            save_tensors(named, part / ADAPTER_FILE, {"format": "pt"})
            settings = storable(_adapter_config(config, adapter))
            (part / ADAPTER_CONFIG).write_text(json.dumps(settings, indent=2) + "\n", encoding="utf-8")
        if isinstance(codec, Path):
            shutil.copyfile(codec, part / settings["codec"]["file"])
        elif codec is not None:
            save_tensors(codec, part / settings["codec"]["file"])
        # safetensors creates files that only their owner can read; others may read them as they read config.json
        for path in part.glob("*.safetensors"):
            shutil.copymode(part / "config.json", path)
