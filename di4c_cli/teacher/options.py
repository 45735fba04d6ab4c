"""What a user can say about a model beyond its name. Imports no torch."""

from __future__ import annotations

from dataclasses import dataclass

from di4c_cli.errors import UserError


class TokenizerOnly(UserError):
    """The files hold an image tokenizer and no teacher."""


@dataclass
class Options:
    """What a file does not record, or what the user wants otherwise."""

    weights: str | None = None
    """`ema` or `live` where a file holds both; None is what its publishers evaluate with."""
    heads: int | None = None
    codes: int | None = None
    length: int | None = None
    vqgan: str | None = None
    """Path of the image tokenizer, or the name of a teacher that comes with one."""
    config: str | None = None
    """Path of a configuration that is not beside the weights."""
    tokenizer: str | None = None
    """Path of a tokenizer.json for a text model."""
    offline: bool = False

    def __post_init__(self) -> None:
        if self.weights not in (None, "ema", "live"):
            raise UserError(f"There are no '{self.weights}' weights.", "Choose ema or live.")
        for name in ("heads", "codes", "length"):
            value = getattr(self, name)
            if value is not None and (type(value) is not int or not 1 <= value <= 2**20):
                raise UserError(
                    f"{name} must be a whole number from 1 on, not {value!r}.", "Change the option."
                )
