"""config.json of a teacher or student folder: everything needed to rebuild the model, and its provenance."""

from __future__ import annotations

from typing import Any, Literal

from pydantic import BaseModel, ConfigDict, Field, model_validator

from di4c_cli.errors import UserError
from di4c_cli.foreign.regular import is_plain_name
from di4c_cli.latent.config import LatentConfig, upgrade_latent
from di4c_cli.network.lora_config import AdapterConfig
from di4c_cli.sampler.config import SamplingConfig, upgrade_sampling
from di4c_cli.schema import CurrentName

ADAPTER_FILES = ("adapter_model.safetensors", "adapter_config.json")
"""Weights and settings of an adapter, as PEFT calls them."""
FORMAT = 2
"""Of config.json; `upgrade` reads format 1, which di4c 0.1 wrote."""


class ModelConfig(BaseModel):
    """One model folder."""

    model_config = ConfigDict(extra="forbid")
    di4c: int = FORMAT
    kind: Literal["teacher", "student"]
    name: CurrentName
    network: dict[str, Any]
    process: dict[str, Any]
    latent: LatentConfig | None = None
    adapter: AdapterConfig | None = None
    """Of a student whose folder holds an adapter and λ; all other weights are its teacher's."""
    labels: int | None = None
    codec: dict[str, Any] = Field(default_factory=lambda: {"type": "none"})
    sampling: SamplingConfig = Field(default_factory=SamplingConfig)
    provenance: dict[str, Any] = Field(default_factory=dict)

    @model_validator(mode="before")
    @classmethod
    def _upgraded(cls, config: Any) -> Any:
        return upgrade(config) if isinstance(config, dict) else config

    def codec_file_name(self) -> str | None:
        """The name of the codec's file beside config.json; a name that leads elsewhere is rejected."""
        name = self.codec.get("file")
        if name is not None and not is_plain_name(name):
            problem = f"The codec's file name {name!r} of '{self.name}' is not a plain name."
            raise UserError(problem, "Check the model's config.json.")
        return name


def upgrade_tensor(name: str) -> str:
    """The present name of a tensor in a model folder of any format."""
    return name.replace("latent_law.", "latent_prior.", 1) if name.startswith("latent_law.") else name


def upgrade(config: dict[str, Any]) -> dict[str, Any]:
    """A config.json of an older format in the keys of today, section by section; provenance stays as recorded."""
    if config.get("di4c") != 1:
        return config
    config = {**config, "di4c": FORMAT}
    for section, upgrade_section in (("latent", upgrade_latent), ("sampling", upgrade_sampling)):
        if isinstance(config.get(section), dict):
            config[section] = upgrade_section(config[section])
    return config
