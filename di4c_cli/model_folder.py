"""The model folder of teachers and students: model.safetensors, config.json, README.md and the codec's file."""

from __future__ import annotations

import json
import shutil
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any

import torch
from safetensors import SafetensorError, safe_open
from safetensors.torch import save_file
from torch import Tensor

from di4c_cli import files
from di4c_cli.build import assemble, check_fit
from di4c_cli.config import FORMAT, ModelConfig, upgrade_tensor
from di4c_cli.denoiser import Denoiser
from di4c_cli.errors import UserError
from di4c_cli.limits import read_config
from di4c_cli.load_report import LoadReport
from di4c_cli.memory import physical_memory
from di4c_cli.printable import storable

WEIGHTS_FILE = "model.safetensors"
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


def read_tensors(path: Path) -> dict[str, Tensor]:
    """The tensors of a safetensors file as they are stored."""
    if path.stat().st_size > physical_memory():
        raise UserError(f"{path} is larger than this machine's memory.", "Use a machine with more memory.")
    return _read(path, lambda file, name: file.get_tensor(name))


def weights_file(folder: Path) -> Path:
    """The weights of a model folder."""
    path = folder / WEIGHTS_FILE
    if not path.is_file():
        raise UserError(f"{folder} has no {WEIGHTS_FILE}.", "Name a complete model folder.")
    return path


def load_folder(folder: Path) -> tuple[ModelConfig, Denoiser, LoadReport]:
    """The config, the denoiser in evaluation mode, and the report on every tensor."""
    config, path = read_config(folder), weights_file(folder)
    check_fit(config, read_shapes(path), str(path))  # before any tensor is read
    return config, *assemble(config, read_tensors(path), str(path))


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
    denoiser: Denoiser,
    card: str,
    codec: Path | Mapping[str, Tensor] | None = None,
    dtype: torch.dtype | None = None,
) -> None:
    """Write a model folder completely or not at all; `codec` is the file that config.codec names, or its tensors."""
    tensors = {
        name: (tensor.to(dtype) if dtype is not None and tensor.is_floating_point() else tensor).cpu().contiguous()
        for name, tensor in denoiser.network.state_dict().items()
    }
    settings = storable(config.model_dump(mode="json"))
    metadata = {"format": "pt", "di4c": str(FORMAT), "kind": config.kind, "name": settings["name"]}
    with files.new_folder(folder) as part:
        text = json.dumps(settings, indent=2, ensure_ascii=False)
        (part / "config.json").write_text(text + "\n", encoding="utf-8")
        (part / "README.md").write_text(storable(card), encoding="utf-8")
        save_tensors(tensors, part / WEIGHTS_FILE, metadata)
        if isinstance(codec, Path):
            shutil.copyfile(codec, part / settings["codec"]["file"])
        elif codec is not None:
            save_tensors(codec, part / settings["codec"]["file"])
        # safetensors creates files that only their owner can read; others may read them as they read config.json
        for path in part.glob("*.safetensors"):
            shutil.copymode(part / "config.json", path)
