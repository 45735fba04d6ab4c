"""The model folder: model.safetensors + config.json + README.md, for students and converted teachers alike."""

from __future__ import annotations

import json
import shutil
from pathlib import Path

import torch
from pydantic import ValidationError
from safetensors import SafetensorError, safe_open
from safetensors.torch import save_file
from torch import Tensor, nn

from di4c_cli import files, network, process
from di4c_cli.config import FORMAT, ModelConfig
from di4c_cli.denoiser import Denoiser, Latent
from di4c_cli.errors import UserError

MAX_PARAMETERS = 20_000_000_000


def build(config: ModelConfig) -> Denoiser:
    """The denoiser a config describes, with fresh weights."""
    settings = dict(config.network)
    latent = None
    if config.latent is not None:
        latent = Latent(config.latent.dim, config.latent.distribution)
        settings["latent"] = config.latent.model_dump(exclude_none=True)
    try:
        net = network.build(settings)
    except (TypeError, ValueError, RuntimeError, OverflowError) as error:
        raise UserError(f"The network settings are impossible: {error}.", "Check the model's config.json.") from error
    return Denoiser(net, process.build(config.process), latent, config.labels)


def read_config(folder: Path) -> ModelConfig:
    """config.json, checked."""
    path = folder / "config.json"
    if not path.is_file():
        raise UserError(f"{folder} has no config.json, so it is not a di4c model.", "Name a folder that `di4c` wrote.")
    try:
        config = ModelConfig.model_validate_json(path.read_bytes())
    except ValidationError as error:
        first = error.errors()[0]
        key = ".".join(map(str, first["loc"])) or "the file"
        raise UserError(f"{path}: {key}: {first['msg']}.", "Mend it or convert the model again.") from error
    if config.di4c > FORMAT:
        raise UserError(f"{path} was written by a newer di4c (format {config.di4c}).", "Upgrade di4c.")
    return config


def read_tensors(path: Path) -> dict[str, Tensor]:
    """A safetensors file in float32 (wider types are kept)."""
    try:
        with safe_open(path, framework="pt") as file:
            tensors = {name: file.get_tensor(name) for name in file.keys()}  # noqa: SIM118 (not a dict)
    except (SafetensorError, OSError, ValueError, RuntimeError) as error:
        raise UserError(f"{path} is not a readable safetensors file: {error}.", "Fetch it again.") from error
    return {name: t.float() if t.dtype in (torch.float16, torch.bfloat16) else t for name, t in tensors.items()}


def fill(net: nn.Module, tensors: dict[str, Tensor], where: str) -> None:
    """Put tensors into a network; anything missing, left over, misshapen or not finite is an error."""
    expected = net.state_dict()
    missing, extra = sorted(expected.keys() - tensors.keys()), sorted(tensors.keys() - expected.keys())
    if missing or extra:
        what = f"misses '{missing[0]}'" if missing else f"has an unknown tensor '{extra[0]}'"
        raise UserError(f"{where} {what} ({len(missing)} missing, {len(extra)} unknown).", "Convert the model again.")
    for name, tensor in tensors.items():
        if tensor.shape != expected[name].shape:
            shapes = f"{tuple(tensor.shape)} instead of {tuple(expected[name].shape)}"
            raise UserError(f"{where}: '{name}' has shape {shapes}.", "Check config.json.")
        if tensor.is_floating_point() and not bool(torch.isfinite(tensor).all()):
            raise UserError(f"{where}: '{name}' holds NaN or infinite numbers.", "The file is damaged; fetch it again.")
    net.load_state_dict(tensors)


def load_folder(folder: Path) -> tuple[ModelConfig, Denoiser]:
    """A model folder as config and denoiser in evaluation mode."""
    config = read_config(folder)
    weights = folder / "model.safetensors"
    if not weights.is_file():
        raise UserError(f"{folder} has no model.safetensors.", "Name a complete model folder.")
    tensors = read_tensors(weights)
    claimed = sum(tensor.numel() for tensor in tensors.values())
    denoiser = build_checked(config, claimed)
    fill(denoiser.network, tensors, str(weights))
    return config, denoiser.eval().requires_grad_(False)


def build_checked(config: ModelConfig, claimed: int) -> Denoiser:
    """`build`, after comparing the size the config asks for with the size the weights have.

    An absurd config (10^9 layers) must not exhaust the memory before anybody notices.
    """
    depth = int(config.network.get("depth", 1) or 1)
    if depth > max(1, claimed):
        raise UserError(f"config.json asks for {depth} layers, more than there are weights.", "Check config.json.")
    with torch.device("meta"):
        asked = sum(p.numel() for p in build(config).network.state_dict().values())
    if asked > MAX_PARAMETERS or asked != claimed:
        raise UserError(
            f"config.json describes {asked} weights but the file holds {claimed}.", "Check config.json or fetch it again."
        )
    return build(config)


def save_folder(
    folder: Path,
    config: ModelConfig,
    denoiser: Denoiser,
    card: str,
    codec_file: Path | None = None,
    dtype: torch.dtype | None = None,
) -> None:
    """Write a model folder, whole or not at all."""
    tensors = {
        name: (tensor.to(dtype) if dtype is not None and tensor.is_floating_point() else tensor).cpu().contiguous()
        for name, tensor in denoiser.network.state_dict().items()
    }
    metadata = {"format": "pt", "di4c": str(FORMAT), "kind": config.kind, "name": config.name}
    with files.new_folder(folder) as part:
        save_file(tensors, part / "model.safetensors", metadata)
        (part / "config.json").write_text(json.dumps(config.model_dump(mode="json"), indent=2, ensure_ascii=False) + "\n")
        (part / "README.md").write_text(card, encoding="utf-8")
        if codec_file is not None:
            shutil.copyfile(codec_file, part / codec_file.name)
