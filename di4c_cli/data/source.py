"""`--data SOURCE`: from a path, a Hub id, `embedded` or `teacher` to a numbered stream."""

from __future__ import annotations

from dataclasses import dataclass

from di4c_cli import embedded
from di4c_cli.data.batch import Source
from di4c_cli.data.embedded import load_world
from di4c_cli.data.items import Items, TensorItems, check_items
from di4c_cli.data.stream import NoData, Shuffled
from di4c_cli.errors import UserError
from di4c_cli.model import Model


@dataclass(frozen=True)
class Wanted:
    """What a round asks of its data."""

    seed: int
    stream: str
    label_drop: float
    flip: bool


def world_of(model: Model) -> str:
    """The embedded world a model belongs to: its own name, or that of the teacher it came from."""
    names = (model.config.name, str(model.config.provenance.get("teacher", "")))
    for name in names:
        for world in embedded.WORLDS:
            if name in (world, f"{world}-student"):
                return world
    raise UserError(
        f"'{model.name}' is not an embedded teacher, so there is no embedded data for it.",
        "Name data with --data FILE, or use --data teacher.",
    )


def embedded_items(world: str, model: Model) -> Items:
    """The training part of an embedded world."""
    data = load_world(world)
    shape = model.config.codec.get("shape") if model.config.codec.get("type") == "pixels" else None
    return TensorItems(data.train, data.train_label, None if shape is None else tuple(shape))


def find_items(name: str, model: Model) -> Items:
    """The items a source names, checked against the teacher."""
    if name == "embedded" or name.startswith("embedded:"):
        world = name.partition(":")[2] or world_of(model)
        items = embedded_items(world, model)
    else:
        raise UserError(
            f"There is no data at '{name}'.", "Name data with --data FILE, or use --data teacher."
        )
    denoiser = model.denoiser
    check_items(items, name, denoiser.length, denoiser.symbols, denoiser.labels)
    return items


def open_source(name: str, model: Model, wanted: Wanted) -> Source:
    """The endless stream of a source for one round."""
    denoiser = model.denoiser
    if name == "teacher":
        return NoData(denoiser.length, wanted.seed, wanted.stream, denoiser.labels, wanted.label_drop)
    items = find_items(name, model)
    return Shuffled(
        items,
        wanted.seed,
        wanted.stream,
        denoiser.symbols,
        denoiser.labels,
        wanted.label_drop,
        wanted.flip,
        where=name,
    )
