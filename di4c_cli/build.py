"""A denoiser from a `ModelConfig`: with fresh weights, on the meta device, or with the tensors of a file."""

from __future__ import annotations

from collections.abc import Mapping
from typing import cast

import torch
from torch import Tensor, nn

from di4c_cli import limits, network, process
from di4c_cli.config import ModelConfig
from di4c_cli.denoiser import Denoiser
from di4c_cli.errors import UserError
from di4c_cli.latent.prior import LatentPrior
from di4c_cli.limits import CHECK_CONFIG
from di4c_cli.load_report import LoadReport
from di4c_cli.numerics import shapes_only

MAX_WEIGHT = 1e8
"""Trained weights are smaller. A weight with a flipped exponent bit exceeds the bound; its outputs are not finite."""
FLOAT_TYPES = (torch.float16, torch.bfloat16, torch.float32, torch.float64)


def build_network(config: ModelConfig) -> nn.Module:
    """The network of a checked config, with fresh weights on the current default device."""
    limits.check(config)
    settings = dict(config.network)
    if config.latent is not None:
        settings["latent"] = config.latent
    try:
        return network.build(settings)
    except (TypeError, ValueError, RuntimeError, ArithmeticError, LookupError, AttributeError) as error:
        raise UserError(f"The network settings are impossible: {error}.", CHECK_CONFIG) from error


def build_denoiser(config: ModelConfig) -> Denoiser:
    """The denoiser that a config describes, with fresh weights."""
    return _denoiser(build_network(config), config)


def build_on_meta(config: ModelConfig) -> Denoiser:
    """The denoiser with its shapes and without memory for its weights."""
    with shapes_only():
        return build_denoiser(config)


def _denoiser(net: nn.Module, config: ModelConfig) -> Denoiser:
    latent = None
    if (given := config.latent) is not None:
        places = cast(network.Network, net).length if given.inject == "local" else 1
        latent = LatentPrior(given.dim, given.distribution, places)
    try:
        forward = process.build(config.process)
    except (TypeError, ValueError, RuntimeError, ArithmeticError) as error:
        raise UserError(f"The process settings are impossible: {error}.", CHECK_CONFIG) from error
    return Denoiser(net, forward, latent, config.labels)


def check_fit(
    config: ModelConfig,
    given: Mapping[str, Tensor],
    where: str,
    renamed: Mapping[str, str] | None = None,
    unused: Mapping[str, str] | None = None,
) -> tuple[nn.Module, LoadReport]:
    """The network of a config on the meta device, and the report on `given`, of which only the shapes matter.

    A config that does not fit the tensors is rejected here, before memory is allocated.
    """
    limits.check(config)
    sizes, held = config.network, len(given)
    asked = sizes.get("depth") or sizes["blocks"] * len(sizes["multipliers"])  # every layer has a tensor or more
    if asked > held:
        problem = f"{where} holds {held} tensors, too few for the {asked} layers of its configuration."
        raise UserError(problem, CHECK_CONFIG)
    with shapes_only():
        net = build_network(config)
    expected = net.state_dict()
    report = LoadReport.compare(expected, given, renamed, unused)
    report.check(where)
    if sum(slot.numel() for slot in expected.values()) > limits.MAX_PARAMETERS:
        raise UserError(f"{where} describes more weights than di4c handles.", CHECK_CONFIG)
    return net, report


def assemble(
    config: ModelConfig,
    tensors: Mapping[str, Tensor],
    where: str,
    renamed: Mapping[str, str] | None = None,
    unused: Mapping[str, str] | None = None,
) -> tuple[Denoiser, LoadReport]:
    """The denoiser of a config with the weights `tensors`, in evaluation mode, and the report on every tensor."""
    net, report = check_fit(config, tensors, where, renamed, unused)
    names = list(net.state_dict())
    # All weights get one type: half precision is widened, and float64 is kept only if every tensor has it.
    dtype = torch.float64 if all(tensors[name].dtype == torch.float64 for name in names) else torch.float32
    weights = {name: _weight(tensors[name], dtype, name, where) for name in names}
    net.load_state_dict(weights, assign=True)
    return _denoiser(net, config).eval().requires_grad_(False), report


def _weight(tensor: Tensor, dtype: torch.dtype, name: str, where: str) -> Tensor:
    """A checked copy in memory of its own.

    Torch aligns what it allocates; a view into a file is not aligned, and alignment can decide the last bit.
    """
    hint = "The file is damaged; fetch it again."
    if tensor.dtype not in FLOAT_TYPES:
        raise UserError(f"{where}: '{name}' holds {tensor.dtype} instead of floating-point weights.", hint)
    own = torch.empty(tensor.shape, dtype=dtype).copy_(tensor)
    largest = float(own.abs().amax()) if own.numel() else 0.0
    if not largest <= MAX_WEIGHT:  # NaN compares false
        what = f"a weight above {MAX_WEIGHT:g}" if largest < float("inf") else "NaN or infinity"
        raise UserError(f"{where}: '{name}' holds {what}.", hint)
    return own
