"""What a config.json may ask for: ranges of its numbers, checked before anything is built from them.

A config comes from strangers. 10^9 layers or a state space of 10^6 symbols must be refused at once, not
discovered when the memory is gone. The ranges are far wider than any real model and are no advice.
"""

from __future__ import annotations

from typing import Annotated, Any, Literal

from pydantic import BaseModel, ConfigDict, Field, ValidationError

from di4c_cli.config import ModelConfig
from di4c_cli.errors import UserError

MAX_LENGTH = 2**18
MAX_STEPS = 2**16
MAX_NUMBERS = 2**22
MAX_PARAMETERS = 20_000_000_000

Count = Annotated[int, Field(strict=True, ge=1, le=2**20)]
Small = Annotated[int, Field(strict=True, ge=1, le=2**12)]
Share = Annotated[float, Field(ge=0, lt=1)]
Positive = Annotated[float, Field(gt=0, le=1e9, allow_inf_nan=False)]


class _Settings(BaseModel):
    """Ranges of the numbers we know; unknown names are left to the constructor, which refuses them."""

    model_config = ConfigDict(extra="allow")
    type: str
    symbols: Count


class _Transformer(_Settings):
    type: Literal["dit", "maskgit"]
    length: Count
    width: Annotated[int, Field(strict=True, ge=1, le=2**16)]
    depth: Small
    heads: Small
    cond_dim: Count | None = None
    mlp: Count | None = None
    labels: Annotated[int, Field(strict=True, ge=0, le=2**20)] | None = None
    dropout: Share = 0.0
    time_conditioning: bool = False


class _UNet(_Settings):
    type: Literal["unet"]
    shape: Annotated[list[Small], Field(min_length=3, max_length=3)]
    channels: Annotated[int, Field(strict=True, ge=4, le=2**14)]
    multipliers: Annotated[list[Small], Field(min_length=1, max_length=12)]
    blocks: Annotated[int, Field(strict=True, ge=1, le=64)]
    attention: int | Annotated[list[int], Field(max_length=12)]
    time_dim: Count
    time_scale: Positive = 1000.0
    labels: Annotated[int, Field(strict=True, ge=0, le=2**20)] | None = None
    dropout: Share = 0.0


class _Vqgan(BaseModel):
    """Sizes of a VQGAN; those left out are refused by its constructor."""

    model_config = ConfigDict(extra="allow")
    channels: Small = 1
    multipliers: Annotated[list[Small], Field(min_length=1, max_length=12)] = [1]
    blocks: Annotated[int, Field(strict=True, ge=0, le=64)] = 1
    attention_resolutions: Annotated[
        list[Annotated[int, Field(strict=True, ge=0, le=2**16)]], Field(max_length=12)
    ] = []
    z_channels: Small = 1
    embed_dim: Small = 1
    codes: Annotated[int, Field(strict=True, ge=1, le=2**16)] = 1
    resolution: Annotated[int, Field(strict=True, ge=1, le=2**16)] = 1
    in_channels: Small = 3
    out_channels: Small = 3


class _Masked(_Settings):
    type: Literal["masked"]


class _Dense(_Settings):
    """Processes that hold S×S matrices."""

    type: Literal["gaussian", "uniform"]
    symbols: Annotated[int, Field(strict=True, ge=2, le=1024)]
    rate_sigma: Positive = 1.0
    q_sigma: Positive = 1.0
    time_exponential: Annotated[float, Field(gt=1, le=1e6)] = 100.0
    time_base: Positive = 3.0


NETWORKS: dict[str, type[_Settings]] = {"dit": _Transformer, "maskgit": _Transformer, "unet": _UNet}
PROCESSES: dict[str, type[_Settings]] = {"masked": _Masked, "gaussian": _Dense, "uniform": _Dense}


def check(config: ModelConfig) -> None:
    """Refuse absurd or contradictory settings in one sentence."""
    hint = "Check the model's config.json."
    for part, settings, known in (
        ("network", config.network, NETWORKS),
        ("process", config.process, PROCESSES),
    ):
        kind = settings.get("type")
        if not isinstance(kind, str) or kind not in known:
            raise UserError(f"The {part} type {kind!r} is unknown.", f"Known: {', '.join(known)}.")
        _validate(part, settings, known[kind])
    network, process = config.network, config.process
    if network["symbols"] != process["symbols"]:
        raise UserError(
            f"The network has {network['symbols']} symbols but the process {process['symbols']}.", hint
        )
    if (config.labels or 0) != (network.get("labels") or 0):
        raise UserError(
            f"The model claims {config.labels} labels but its network {network.get('labels')}.", hint
        )
    if length_of(network) > MAX_LENGTH:
        raise UserError(f"A length of {length_of(network)} positions is beyond any model.", hint)
    if (
        config.latent
        and config.latent.inject == "local"
        and config.latent.dim * length_of(network) > MAX_NUMBERS
    ):
        raise UserError(f"λ with {config.latent.dim} numbers at every position is beyond any model.", hint)
    if config.sampling.steps > MAX_STEPS:
        raise UserError(f"{config.sampling.steps} sampling steps are beyond any use.", hint)


def check_vqgan(settings: dict[str, Any]) -> None:
    """Refuse settings that are not sizes of a real VQGAN."""
    _validate("codec.vqgan", settings, _Vqgan)


def length_of(network: dict[str, Any]) -> int:
    """D of checked network settings."""
    if "length" in network:
        return int(network["length"])
    channels, height, width = network["shape"]
    return int(channels * height * width)


def layers(network: dict[str, Any]) -> int:
    """A lower bound of the tensors that checked settings ask for, known without building anything."""
    return int(network.get("depth") or network["blocks"] * len(network["multipliers"]))


def _validate(part: str, settings: dict[str, Any], schema: type[BaseModel]) -> None:
    try:
        schema.model_validate(settings)
    except ValidationError as error:
        first = error.errors()[0]
        key = ".".join([part, *map(str, first["loc"])])
        value = first.get("input")
        shown = f" (got {value!r})" if isinstance(value, (str, int, float)) and len(repr(value)) < 40 else ""
        raise UserError(
            f"Setting '{key}': {first['msg']}{shown}.", "Check the model's config.json."
        ) from error
