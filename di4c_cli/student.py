"""The model folder, for students and converted teachers: model.safetensors + config.json + README.md."""

from __future__ import annotations

import json
import os
import shutil
from collections.abc import Collection, Mapping
from pathlib import Path
from typing import cast

import torch
from pydantic import ValidationError
from safetensors import SafetensorError, safe_open
from safetensors.torch import save_file
from torch import Tensor, nn

from di4c_cli import files, limits, network, process
from di4c_cli.account import Account
from di4c_cli.config import FORMAT, ModelConfig
from di4c_cli.denoiser import Denoiser
from di4c_cli.errors import UserError
from di4c_cli.latent.prior import LatentPrior
from di4c_cli.network.base import Network

MAX_CONFIG = 2 * 2**20
LARGEST = 1e8
"""No trained weight is this large, but one with a flipped exponent bit is, and its outputs are not finite."""
FLOATS = (torch.float16, torch.bfloat16, torch.float32, torch.float64)


def build_network(config: ModelConfig) -> nn.Module:
    """The network of a checked config, with fresh weights on the current default device."""
    limits.check(config)
    settings = dict(config.network)
    if config.latent is not None:
        settings["latent"] = config.latent
    try:
        return network.build(settings)
    except (TypeError, ValueError, RuntimeError, ArithmeticError, LookupError, AttributeError) as error:
        raise UserError(
            f"The network settings are impossible: {error}.", "Check the model's config.json."
        ) from error


def build(config: ModelConfig) -> Denoiser:
    """The denoiser a config describes, with fresh weights."""
    return _dress(build_network(config), config)


def _dress(net: nn.Module, config: ModelConfig) -> Denoiser:
    latent = None
    if (given := config.latent) is not None:
        places = cast(Network, net).length if given.inject == "local" else 1
        latent = LatentPrior(given.dim, given.distribution, places)
    try:
        forward = process.build(config.process)
    except (ValueError, RuntimeError, ArithmeticError) as error:
        raise UserError(
            f"The process settings are impossible: {error}.", "Check the model's config.json."
        ) from error
    return Denoiser(net, forward, latent, config.labels)


def plan(
    config: ModelConfig,
    given: Mapping[str, Tensor],
    where: str,
    renamed: Mapping[str, str] | None = None,
    unused: Mapping[str, str] | None = None,
    fresh: Collection[str] = (),
) -> tuple[nn.Module, Account]:
    """The network of a config laid out without memory, and the account of `given`, whose shapes alone matter.

    A config that does not fit the weights is refused here, where it costs nothing.
    """
    limits.check(config)
    asked, held = limits.layers(config.network), len(given)
    if asked > held:
        raise UserError(
            f"{where} holds {held} tensors, too few for the {asked} layers of its configuration.",
            "Check the model's configuration.",
        )
    with torch.device("meta"):
        net = build_network(config)
    expected = net.state_dict()
    account = Account.compare(expected, given, renamed, unused, fresh)
    account.check(where)
    if sum(slot.numel() for slot in expected.values()) > limits.MAX_PARAMETERS:
        raise UserError(
            f"{where} describes more weights than di4c handles.", "Check the model's configuration."
        )
    return net, account


def assemble(
    config: ModelConfig,
    tensors: Mapping[str, Tensor],
    where: str,
    renamed: Mapping[str, str] | None = None,
    unused: Mapping[str, str] | None = None,
    fresh: Collection[str] = (),
) -> tuple[Denoiser, Account]:
    """The denoiser of a config holding `tensors`, in evaluation mode, and the account of every tensor.

    Names in `fresh` may be missing; their weights are drawn as in a new network.
    """
    net, account = plan(config, tensors, where, renamed, unused, fresh)
    absent = [row.name for row in account.rows if row.status == "fresh"]
    names = [name for name in net.state_dict() if name not in absent]
    # one type for all: half precision is widened, and a single wide tensor among others does not fit them
    dtype = torch.float64 if all(tensors[name].dtype == torch.float64 for name in names) else torch.float32
    weights = {name: _weight(tensors[name], dtype, name, where) for name in names}
    if absent:
        net = build_network(config)
    net.load_state_dict(weights, strict=not absent, assign=True)
    return _dress(net, config).eval().requires_grad_(False), account


def _weight(tensor: Tensor, dtype: torch.dtype, name: str, where: str) -> Tensor:
    """A checked copy in memory of its own.

    Torch aligns what it allocates; a view into a file is not aligned, and alignment can decide the last bit.
    """
    hint = "The file is damaged; fetch it again."
    if tensor.dtype not in FLOATS:
        raise UserError(f"{where}: '{name}' holds {tensor.dtype} where weights belong.", hint)
    own = torch.empty(tensor.shape, dtype=dtype).copy_(tensor)
    largest = float(own.abs().amax()) if own.numel() else 0.0
    if not largest <= LARGEST:  # NaN compares false
        what = "numbers no network holds" if largest < float("inf") else "NaN or infinite numbers"
        raise UserError(f"{where}: '{name}' holds {what}.", hint)
    return own


def read_config(folder: Path) -> ModelConfig:
    """config.json, checked."""
    path = folder / "config.json"
    if not path.is_file():
        raise UserError(
            f"{folder} has no config.json, so it is not a di4c model.", "Name a folder that `di4c` wrote."
        )
    if path.stat().st_size > MAX_CONFIG:
        raise UserError(f"{path} is larger than any config.json.", "Convert the model again.")
    try:
        config = ModelConfig.model_validate_json(path.read_bytes())
    except ValidationError as error:
        first = error.errors()[0]
        key = ".".join(map(str, first["loc"])) or "the file"
        raise UserError(f"{path}: {key}: {first['msg']}.", "Mend it or convert the model again.") from error
    if config.di4c > FORMAT:
        raise UserError(f"{path} was written by a newer di4c (format {config.di4c}).", "Upgrade di4c.")
    limits.check(config)
    return config


def physical_memory() -> int:
    """Bytes of memory of this machine, as far as it tells."""
    try:
        return os.sysconf("SC_PAGE_SIZE") * os.sysconf("SC_PHYS_PAGES")
    except (ValueError, OSError, AttributeError):
        return 2**63


def read_shapes(path: Path) -> dict[str, Tensor]:
    """What a safetensors file claims to hold, as tensors without memory."""
    try:
        with safe_open(path, framework="pt") as file:
            names = list(file.keys())
            return {name: torch.empty(file.get_slice(name).get_shape(), device="meta") for name in names}
    except (SafetensorError, OSError, ValueError, RuntimeError, TypeError, AttributeError) as error:
        raise UserError(f"{path} is not a readable safetensors file: {error}.", "Fetch it again.") from error


def read_tensors(path: Path) -> dict[str, Tensor]:
    """A safetensors file as it is stored."""
    if path.stat().st_size > physical_memory():
        raise UserError(f"{path} is larger than this machine's memory.", "Use a machine that can hold it.")
    try:
        with safe_open(path, framework="pt") as file:
            return {name: file.get_tensor(name) for name in file.keys()}  # noqa: SIM118 (not a dict)
    except (SafetensorError, OSError, ValueError, RuntimeError, TypeError, AttributeError) as error:
        raise UserError(f"{path} is not a readable safetensors file: {error}.", "Fetch it again.") from error


def load_folder(folder: Path) -> tuple[ModelConfig, Denoiser]:
    """A model folder as config and denoiser in evaluation mode."""
    config, denoiser, _ = load_with_account(folder)
    return config, denoiser


def load_with_account(folder: Path) -> tuple[ModelConfig, Denoiser, Account]:
    """`load_folder`, with the account of every tensor."""
    config = read_config(folder)
    weights = folder / "model.safetensors"
    if not weights.is_file():
        raise UserError(f"{folder} has no model.safetensors.", "Name a complete model folder.")
    plan(config, read_shapes(weights), str(weights))  # before a number of the file is read
    denoiser, account = assemble(config, read_tensors(weights), str(weights))
    return config, denoiser, account


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
        name: (tensor.to(dtype) if dtype is not None and tensor.is_floating_point() else tensor)
        .cpu()
        .contiguous()
        for name, tensor in denoiser.network.state_dict().items()
    }
    metadata = {"format": "pt", "di4c": str(FORMAT), "kind": config.kind, "name": config.name}
    with files.new_folder(folder) as part:
        save_file(tensors, part / "model.safetensors", metadata)
        (part / "config.json").write_text(
            json.dumps(config.model_dump(mode="json"), indent=2, ensure_ascii=False) + "\n", encoding="utf-8"
        )
        # safetensors makes files for their owner alone; others may read a student as they may its config.json
        shutil.copymode(part / "config.json", part / "model.safetensors")
        (part / "README.md").write_text(card, encoding="utf-8")
        if codec_file is not None:
            shutil.copyfile(codec_file, part / codec_file.name)
