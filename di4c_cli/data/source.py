"""`--data SOURCE`: from a path, a Hub id, `embedded` or `teacher` to a numbered stream."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING, cast

import torch

from di4c_cli import hub
from di4c_cli.codec.text import END_OF_TEXT
from di4c_cli.data import cifar, hub_text, images, text, tokens
from di4c_cli.data.items import Items, TensorItems, check_items, check_rows
from di4c_cli.data.stream import DataSpec, NoData, Shuffled, Source
from di4c_cli.errors import Di4cError, UserError
from di4c_cli.foreign.regular import is_regular, regular_file
from di4c_cli.model import Model
from di4c_cli.tasks.registry import get_task, task_of

if TYPE_CHECKING:
    from di4c_cli.codec.text import Text
    from di4c_cli.codec.vq import Vq

NAME_DATA = "Name data with --data FILE, or train without any: --data teacher."


def open_source(name: str, model: Model, spec: DataSpec) -> Source:
    """The endless stream of a source for one round."""
    if name == "teacher":
        return NoData(spec)
    if is_hub(name, model):
        return _hub(name, model, spec)
    items = find_items(name, model, spec.flip, spec.device, spec.random_crop)
    check_items(items, name, spec.length)
    check_rows(items, [0], *items.rows([0]), spec.symbols, spec.labels)
    return Shuffled(items, spec)


def _is_embedded(name: str) -> bool:
    return name == "embedded" or name.startswith("embedded:")


def is_hub(name: str, model: Model) -> bool:
    """Whether a name is a dataset of the Hub: it has the form of one, no such path exists, the teacher writes text."""
    repo = name.partition("@")[0].partition(":")[0]
    text_teacher = model.config.codec.get("type") == "text"
    return text_teacher and not _is_embedded(name) and not Path(name).exists() and hub.is_id(repo)


def find_items(
    name: str, model: Model, mirrored: bool = False, device: torch.device | str = "cpu", random_crop: bool = False
) -> Items:
    """The items at a local path or of a toy task."""
    if _is_embedded(name):
        return embedded_items(name.partition(":")[2], model)
    path = Path(name)
    if not path.exists():
        raise UserError(f"There is no data at '{name}'.", NAME_DATA)
    if not path.is_dir():
        regular_file(path)
    kind = model.config.codec.get("type")
    if path.suffix == ".npz":
        return images.open_npz(path, pixel_shape(model), model.denoiser.length, model.denoiser.symbols)
    if path.is_file() and path.suffix in tokens.SUFFIXES:
        return tokens.open_token_file(path, model.denoiser.length, model.denoiser.symbols)
    if kind == "text":
        paths = text.text_files(path)
        if not paths:
            known = ", ".join((*text.SUFFIXES, *tokens.SUFFIXES))
            raise UserError(f"{path} holds no text ({known}).", NAME_DATA)
        tokenizer = cast("Text", model.codec).tokenizer
        tokens.check_vocabulary(tokenizer, model.denoiser.symbols)
        ids = tokens.encode_files(paths, tokenizer)
        return tokens.PackedItems(ids, model.denoiser.length, str(path), frame_of(model))
    if path.is_dir() and kind == "pixels":
        if (found := cifar.find_cifar(path)) is not None:
            return cifar.open_cifar(found, model.denoiser.symbols)
        return images.ImageFolder(path, tuple(model.config.codec["shape"]), model.denoiser.symbols)
    if path.is_dir() and kind == "vq":
        model.codec.to(device)
        return images.VqItems(path, cast("Vq", model.codec), mirrored, random_crop)
    raise UserError(f"'{name}' is not data for a teacher of {kind} samples.", NAME_DATA)


def probe(name: str, model: Model, here: bool = True) -> str:
    """A short description of a source; reads little and writes nothing. `here`: the teacher's files are local."""
    if name == "teacher":
        return "none: the teacher's own trajectories"
    if is_hub(name, model):
        found = hub_text.find_listing(*_split(name))
        return f"{len(found.files)} Parquet files of {found.repo}@{found.commit[:12]}, fetched when reached"
    path = Path(name)
    if not _is_embedded(name) and path.exists() and (model.config.codec.get("type") == "text" or not here):
        inside = filter(is_regular, path.rglob("*")) if path.is_dir() else [regular_file(path)]
        size = sum(file.stat().st_size for file in inside)
        for file in text.text_files(path)[:1]:
            next(text.documents(file), None)
        return f"{path}, {size / 1e6:.1f} MB"
    items = find_items(name, model)
    check_items(items, name, model.denoiser.length)
    return f"{name}, {len(items)} samples"


def embedded_items(name: str, model: Model) -> Items:
    """The training part of a toy task; without a name, of the task whose samples the model makes."""
    task = get_task(name) if name else task_of(model)
    if task is None:
        raise UserError(f"'{model.name}' belongs to no toy task, so there is no embedded data for it.", NAME_DATA)
    data = task.data
    return TensorItems(data.train, data.train_label, pixel_shape(model), f"embedded {task.name}")


def pixel_shape(model: Model) -> tuple[int, ...] | None:
    """(C, H, W) of a teacher of pixels."""
    codec = model.config.codec
    return tuple(codec["shape"]) if codec.get("type") == "pixels" else None


def frame_of(model: Model) -> int | None:
    """The id around every window: published language models were trained between two end-of-text ids."""
    if model.config.codec.get("name") != "gpt2" or model.denoiser.length <= 2:
        return None
    found: int | None = cast("Text", model.codec).tokenizer.token_to_id(END_OF_TEXT)
    return found


def _split(name: str) -> tuple[str, str | None, str | None]:
    """`user/name:subset@revision` as repository, revision, subset."""
    rest, _, revision = name.partition("@")
    repo, _, subset = rest.partition(":")
    return repo, revision or None, subset or None


def _hub(name: str, model: Model, spec: DataSpec) -> Source:
    """A text dataset of the Hub: `user/name`, `user/name:subset`, `user/name@revision`."""
    try:
        listing = hub_text.pinned_listing(name, *_split(name))
    except Di4cError as error:
        raise type(error)(f"The data '{name}' cannot be reached: {error.message}", NAME_DATA) from error
    tokenizer = cast("Text", model.codec).tokenizer
    tokens.check_vocabulary(tokenizer, spec.symbols)
    key = {"dataset": f"{listing.repo}@{listing.commit}", "files": listing.files}
    return hub_text.Streamed(hub_text.hub_documents(listing), tokenizer, spec, key, frame_of(model))
