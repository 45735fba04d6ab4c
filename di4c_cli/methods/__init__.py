"""Training methods, one per module. To register another one, add its config to `AnyMethodConfig`."""

from __future__ import annotations

from importlib import import_module
from typing import TYPE_CHECKING, Annotated, get_args

from pydantic import Field

from di4c_cli.methods.config import MethodConfig
from di4c_cli.methods.di4c_config import Di4CConfig
from di4c_cli.methods.moment_matching_config import MomentMatchingConfig
from di4c_cli.methods.sdtt_config import SDTTConfig
from di4c_cli.methods.variational_config import VariationalConfig

if TYPE_CHECKING:
    from di4c_cli.methods.base import Method

ShippedConfigs = Di4CConfig | VariationalConfig | MomentMatchingConfig | SDTTConfig
AnyMethodConfig = Annotated[ShippedConfigs, Field(discriminator="name")]
"""The recipe's section `method`, told apart by its key `name`."""

METHODS: dict[str, type[MethodConfig]] = {
    config.model_fields["name"].default: config for config in get_args(get_args(AnyMethodConfig)[0])
}
"""Configs by method name."""
DEFAULT_METHOD = "di4c"
"""The method of a recipe without a section `method`; `Recipe.method` has the same default."""


def implementation(config: MethodConfig) -> type[Method]:
    """The class that trains by `config`; importing it imports torch."""
    module, _, name = config.implementation.partition(":")
    found: type[Method] = getattr(import_module(module), name)
    return found
