"""tauLDR pixel models and their students (`.pt`): named weights, the EMA as a list, a YAML beside."""

from __future__ import annotations

from typing import Any

from di4c_cli.config import ModelConfig
from di4c_cli.errors import UserError
from di4c_cli.latent.config import LatentConfig
from di4c_cli.sampler.config import SamplingConfig
from di4c_cli.teacher import pickles
from di4c_cli.teacher.architectures import network_settings, process_settings
from di4c_cli.teacher.bundle import Bundle, LoadOptions, require, strip
from di4c_cli.teacher.model_files import ModelFiles, has_suffix

NAME = "tauldr"
RECIPE = "tauldr-cifar10"
LATENT_WEIGHT = "tlam_mix.weight"
EMA_KEY = "ema_shadow_params"
DEFAULT_STEPS = 10
REQUIRED_SWITCHES = {"skip_rescale": True, "fix_logistic": False, "low_t_logit_adjust": False}
"""Switches of the published code and the values that our network implements."""


def is_checkpoint(tree: dict[str, Any]) -> bool:
    """`model` with the U-Net's first convolution under `net.` or `net.module.`."""
    model = tree.get("model")
    return isinstance(model, dict) and has_suffix(model, "input_conv.weight")


def is_config(tree: dict[str, Any]) -> bool:
    """The training configuration, as saved beside the checkpoints."""
    model, data = tree.get("model"), tree.get("data")
    return isinstance(model, dict) and isinstance(data, dict) and "ch_mult" in model and "S" in data


def detect(source: ModelFiles) -> bool:
    """By the checkpoint; the configuration may be absent if the model is the published one."""
    return source.checkpoint(is_checkpoint) is not None


def read(source: ModelFiles, options: LoadOptions) -> Bundle:
    """The model. Its authors evaluate the EMA weights; `weights=live` gives the others."""
    found = source.checkpoint(is_checkpoint)
    assert found is not None
    path, checkpoint = found
    stored = checkpoint["model"]
    live = pickles.tensors_of(stored, path.name)
    weights = options.choose("ema", EMA_KEY in stored, "as its authors do", path.name)
    chosen = pickles.averaged(stored.get(EMA_KEY), list(live), path) if weights == "ema" else live
    tensors, renamed, unused = strip(chosen, "net.module.", "net.")
    tree = source.tree(is_config)
    network, process = settings_of(tree)
    unused |= {key: "training state" for key in checkpoint if key != "model"}
    unused |= {str(key): "EMA state" for key in stored if key not in live}
    if weights == "live":
        unused[EMA_KEY] = "the live weights were asked for"
    else:
        unused.pop(EMA_KEY)
    latent = None
    if LATENT_WEIGHT in tensors:
        dim = 1 if tree is None else tree["model"].get("lam_raw_dim", 1)
        if type(dim) is not int or not 1 <= dim <= 4096:
            raise UserError(f"The tauLDR model has an impossible lam_raw_dim of {dim!r}.", "Check the file.")
        latent = LatentConfig(inject="film", features="sinusoid", dim=dim)
    config = ModelConfig(
        kind="student" if latent else "teacher",
        name=source.name,
        network=network,
        process=process,
        latent=latent,
        codec={"type": "pixels", "shape": network["shape"], "levels": network["symbols"]},
        sampling=SamplingConfig(grid="pixels", last="argmax", steps=DEFAULT_STEPS, tile=16),
        provenance={**source.origin, "format": NAME, "weights": weights},
    )
    return Bundle(config, tensors, path.name, renamed, unused)


def settings_of(tree: dict[str, Any] | None) -> tuple[dict[str, Any], dict[str, Any]]:
    """Network and process settings under our names; those of the published model if there is no configuration."""
    if tree is None:
        process = process_settings("tauldr-unet", rate_sigma=6.0, q_sigma=512.0, time_exponential=100.0, time_base=3.0)
        return network_settings("tauldr-unet", time_scale=1000.0, dropout=0.1), process
    where = "The tauLDR model"
    for name, expected in REQUIRED_SWITCHES.items():
        if tree["model"].get(name, expected) != expected:
            raise UserError(f"{where} has another {name} than the published one.", "Use another model.")
    symbols = require(tree, "data.S", int, where)
    span = tree["model"].get("data_min_max", [0, symbols - 1])
    if span != [0, symbols - 1]:
        raise UserError(f"{where} counts grey levels as {span}, not from 0 to {symbols - 1}.", "Use another model.")
    network = {
        "type": "unet",
        "symbols": symbols,
        "shape": require(tree, "data.shape", list, where),
        "channels": require(tree, "model.ch", int, where),
        "multipliers": require(tree, "model.ch_mult", list, where),
        "blocks": require(tree, "model.num_res_blocks", int, where),
        "attention": require(tree, "model.scale_count_to_put_attn", int, where),
        "time_dim": require(tree, "model.time_embed_dim", int, where),
        "time_scale": require(tree, "model.time_scale_factor", float, where),
        "dropout": require(tree, "model.dropout", float, where),
    }
    names = {"rate_sigma": "rate_sigma", "q_sigma": "Q_sigma", "time_base": "time_base"}
    names["time_exponential"] = "time_exponential"
    process = {ours: require(tree, f"model.{theirs}", float, where) for ours, theirs in names.items()}
    return network, {"type": "gaussian", "symbols": symbols, **process}
