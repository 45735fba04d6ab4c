"""Reading config.json, and the limits of its numbers, checked before anything is built from them.

A config may come from an untrusted source: 10^9 layers or 10^6 symbols must be rejected before memory is allocated. The
limits are far wider than any real model and are no recommendation.
"""

from __future__ import annotations

import math
import os
from pathlib import Path
from typing import Annotated, Any, Literal

from pydantic import BaseModel, ConfigDict, Field, ValidationError

from di4c_cli.config import FORMAT, ModelConfig
from di4c_cli.errors import UserError
from di4c_cli.foreign.structured import read_json
from di4c_cli.memory import physical_memory

MAX_CONFIG_BYTES = 2 * 2**20
MAX_LENGTH = 2**18
MAX_LATENT_NUMBERS = 2**22
MAX_PARAMETERS = 20_000_000_000
MAX_PROCESSES_PER_CORE = 8
"""With --oversubscribe."""
BYTES_PER_HIDDEN_NUMBER = 12
"""Hidden states of a batch, and the copies that a network call makes of them."""
CHECK_CONFIG = "Check the model's config.json."
CONVERT_AGAIN = "Fix the file or convert the model again."

Count = Annotated[int, Field(ge=1, le=2**20)]
Small = Annotated[int, Field(ge=1, le=2**12)]
Blocks = Annotated[int, Field(ge=0, le=64)]
Labels = Annotated[int, Field(ge=0, le=2**20)]
Resolution = Annotated[int, Field(ge=0, le=2**16)]
Multipliers = Annotated[list[Small], Field(min_length=1, max_length=12)]
Share = Annotated[float, Field(ge=0, lt=1)]
Activation = Literal["gelu", "gelu_new", "relu", "silu"]
Positive = Annotated[float, Field(gt=0, le=1e9, allow_inf_nan=False)]


class _Settings(BaseModel):
    """Limits of the settings we know; the constructor rejects unknown names.

    Strict: the constructor gets the value itself, so "0.1" is no number.
    """

    model_config = ConfigDict(extra="allow", strict=True)
    type: str
    symbols: Count


class _Transformer(_Settings):
    length: Count
    width: Annotated[int, Field(ge=1, le=2**16)]
    depth: Small
    heads: Small
    cond_dim: Count | None = None
    mlp: Count | None = None
    labels: Labels | None = None
    dropout: Share = 0.0
    time_conditioning: bool = False
    mask: bool = True


class _Encoder(_Transformer):
    """The Llama-like and the BERT-like network; each constructor rejects the settings of the other."""

    mlp: Count
    rope_base: Annotated[float, Field(ge=1, le=1e12, allow_inf_nan=False)] = 10000.0
    eps: Annotated[float, Field(gt=0, le=1, allow_inf_nan=False)] = 1e-6
    kv_heads: Small | None = None
    head_width: Small | None = None
    qkv_bias: bool = False
    out_bias: bool = False
    qk_norm: bool = False
    tied: bool = False
    shift: bool = False
    positions: Literal["learned", "counted", "rotary"] = "learned"
    padding: Labels | None = None
    pre_norm: bool = False
    embed_norm: bool = True
    token_dropout: bool = False
    activation: Activation = "gelu"
    head_activation: Activation = "gelu"


class _UNet(_Settings):
    shape: Annotated[list[Small], Field(min_length=3, max_length=3)]
    channels: Annotated[int, Field(ge=4, le=2**14)]
    multipliers: Multipliers
    blocks: Annotated[int, Field(ge=1, le=64)]
    attention: int | Annotated[list[int], Field(max_length=12)]
    time_dim: Count
    time_scale: Positive = 1000.0
    labels: Labels | None = None
    dropout: Share = 0.0


class _Vqgan(BaseModel):
    """Limits of a VQGAN's sizes; its constructor rejects missing ones."""

    model_config = ConfigDict(extra="allow", strict=True)
    channels: Small = 1
    multipliers: Multipliers = [1]
    blocks: Blocks = 1
    attention_resolutions: Annotated[list[Resolution], Field(max_length=12)] = []
    z_channels: Small = 1
    embed_dim: Small = 1
    codes: Annotated[int, Field(ge=1, le=2**16)] = 1
    resolution: Annotated[int, Field(ge=1, le=2**16)] = 1
    in_channels: Small = 3
    out_channels: Small = 3


class _Dense(_Settings):
    """Processes that hold S×S matrices."""

    symbols: Annotated[int, Field(ge=2, le=1024)]
    rate_sigma: Positive = 1.0
    q_sigma: Positive = 1.0
    time_exponential: Annotated[float, Field(gt=1, le=1e6)] = 100.0
    time_base: Positive = 3.0


class _Uniform(_Settings):
    horizon: Positive = 1.0
    schedule: Literal["exponential", "linear"] = "exponential"


NETWORKS: dict[str, type[_Settings]] = {
    "dit": _Transformer,
    "maskgit": _Transformer,
    "unet": _UNet,
    "llama": _Encoder,
    "bert": _Encoder,
}
PROCESSES: dict[str, type[_Settings]] = {"masked": _Settings, "gaussian": _Dense, "uniform": _Uniform}


def read_config(folder: Path) -> ModelConfig:
    """config.json of a model folder, checked."""
    path = folder / "config.json"
    if not path.is_file():
        raise UserError(f"{folder} has no config.json.", "Name a model folder that di4c wrote.")
    try:
        config = ModelConfig.model_validate(read_json(path, MAX_CONFIG_BYTES, "config.json", CONVERT_AGAIN))
    except ValidationError as error:
        first = error.errors()[0]
        problem = f"{path}: {'.'.join(map(str, first['loc'])) or 'the file'}: {first['msg']}."
        raise UserError(problem, CONVERT_AGAIN) from error
    if config.di4c > FORMAT:
        raise UserError(f"{path} was written by a newer di4c (format {config.di4c}).", "Upgrade di4c.")
    check(config)
    return config


def check(config: ModelConfig) -> None:
    """Reject absurd and contradictory settings."""
    network, process, latent = config.network, config.process, config.latent
    for part, settings, known in (("network", network, NETWORKS), ("process", process, PROCESSES)):
        kind = settings.get("type")
        if not isinstance(kind, str) or kind not in known:
            raise UserError(f"The {part} type {kind!r} is unknown.", f"Known: {', '.join(known)}.")
        _validate(part, settings, known[kind])
    symbols, labels = network["symbols"], network.get("labels")
    length = network["length"] if "length" in network else math.prod(network["shape"])
    problem = ""
    if symbols != process["symbols"]:
        problem = f"The network has {symbols} symbols but the process {process['symbols']}."
    elif (config.labels or 0) != (labels or 0):
        problem = f"The model claims {config.labels} labels but its network {labels}."
    elif length > MAX_LENGTH:
        problem = f"A length of {length} positions is beyond any model."
    elif latent and latent.inject == "local" and latent.dim * length > MAX_LATENT_NUMBERS:
        problem = f"λ with {latent.dim} numbers at every position is beyond any model."
    if problem:
        raise UserError(problem, CHECK_CONFIG)
    if config.codec.get("type") == "pixels":
        check_pixels(config.codec)


def check_pixels(codec: dict[str, Any]) -> tuple[tuple[int, ...], int]:
    """Image shape and grey levels of a codec entry of pixels."""
    shape, levels = codec.get("shape"), codec.get("levels")
    sides = list(shape) if isinstance(shape, (list, tuple)) else []
    sound = len(sides) == 3 and all(type(side) is int and side > 0 for side in sides)
    if not sound or type(levels) is not int or levels < 2:
        raise UserError("The codec's image shape or number of levels is impossible.", CHECK_CONFIG)
    return tuple(sides), levels


def process_limit(devices: int, oversubscribe: bool = False) -> int:
    """Most processes on so many CPU cores or GPUs."""
    return devices * (MAX_PROCESSES_PER_CORE if oversubscribe else 1)


def check_threads(threads: int) -> None:
    """Reject threads far beyond the cores: the thread library ends the process when it cannot start one."""
    limit = process_limit(os.cpu_count() or 1, oversubscribe=True)
    if threads > limit:
        raise UserError(f"{threads} threads are more than this machine's cores allow.", f"Use {limit} or fewer.")


def check_sampling_memory(samples: int, length: int, width: int) -> None:
    """Reject a batch whose hidden states alone do not fit into the memory of this machine."""
    need, have = samples * length * width * BYTES_PER_HIDDEN_NUMBER, physical_memory()
    if need > have:
        fits = max(1, have // (length * width * BYTES_PER_HIDDEN_NUMBER))
        raise UserError(
            f"A batch of {samples} samples needs about {need / 2**30:.0f} GB, and this machine has "
            f"{have / 2**30:.0f} GB.",
            f"Use --batch-size {fits} or less.",
        )


def check_vqgan(settings: dict[str, Any]) -> None:
    """Reject settings that are not sizes of a real VQGAN."""
    _validate("codec.vqgan", settings, _Vqgan)


def _validate(part: str, settings: dict[str, Any], schema: type[BaseModel]) -> None:
    try:
        schema.model_validate(settings)
    except ValidationError as error:
        first = error.errors()[0]
        key = ".".join([part, *map(str, first["loc"])])
        value = first.get("input")
        shown = f" (got {value!r})" if isinstance(value, (str, int, float)) and len(repr(value)) < 40 else ""
        raise UserError(f"Setting '{key}': {first['msg']}{shown}.", CHECK_CONFIG) from error
