"""Random models of each kind of sample, for data to be checked against."""

from __future__ import annotations

from typing import Any

import torch

from di4c_cli.build import build_denoiser
from di4c_cli.config import ModelConfig
from di4c_cli.data.stream import DataSpec
from di4c_cli.model import Model
from di4c_cli.network.vqgan import VQGAN

VQGAN_SETTINGS = {
    "channels": 32,
    "multipliers": [1, 1],
    "blocks": 1,
    "attention_resolutions": [],
    "z_channels": 4,
    "embed_dim": 4,
    "codes": 16,
    "resolution": 8,
    "in_channels": 3,
    "out_channels": 3,
}


def model(symbols: int, length: int, codec: dict[str, Any], labels: int | None = None, **more: Any) -> Model:
    """A masked transformer over `symbols` with this codec."""
    network = {"type": "maskgit", "symbols": symbols, "length": length, "width": 8, "depth": 1}
    network |= {"heads": 1, "mlp": 8, "labels": labels}
    config = ModelConfig(
        kind="teacher",
        name="small",
        network=network,
        process={"type": "masked", "symbols": symbols},
        labels=labels,
        codec=codec,
    )
    return Model(config, build_denoiser(config), **more)


def text_model(symbols: int = 300, length: int = 8) -> Model:
    """GPT-2's first entries: bytes and a few merges."""
    return model(symbols, length, {"type": "text", "name": "gpt2", "symbols": symbols})


def gpt2_model(length: int = 8) -> Model:
    """The whole GPT-2 vocabulary, with its end-of-text id."""
    return model(50257, length, {"type": "text", "name": "gpt2"})


def pixel_model(shape: tuple[int, ...] = (3, 32, 32), levels: int = 256, labels: int | None = 10) -> Model:
    """A teacher of pictures."""
    codec = {"type": "pixels", "shape": list(shape), "levels": levels}
    return model(levels, shape[0] * shape[1] * shape[2], codec, labels)


def vq_model(labels: int | None = 3) -> Model:
    """A teacher of 4x4 codes of 8x8 images, with a random VQGAN."""
    torch.manual_seed(0)
    vqgan = VQGAN(**VQGAN_SETTINGS)  # type: ignore[arg-type]
    torch.nn.init.normal_(vqgan.quantize.embedding.weight)
    codec = {"type": "vq", "file": "vqgan.safetensors", "vqgan": VQGAN_SETTINGS}
    return model(16, 16, codec, labels, codec_tensors=vqgan.state_dict())


def data_spec(of: Model, seed: int = 0, label_dropout: float = 0.0, flip: bool = False) -> DataSpec:
    """What a round would ask for this teacher."""
    denoiser = of.denoiser
    return DataSpec(seed, "data/1", denoiser.length, denoiser.symbols, denoiser.labels, label_dropout, flip)
