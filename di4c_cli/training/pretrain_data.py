"""Data of a pretraining: what it says about the model's sizes, a tokenizer trained on it, and its held-out part."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from pathlib import Path

import numpy as np
from tokenizers import Tokenizer, decoders, models, pre_tokenizers, trainers
from torch import Tensor

from di4c_cli import files
from di4c_cli.codec.text import END_OF_TEXT, Text
from di4c_cli.data import cache, cifar, images, text, tokens
from di4c_cli.data.items import Items, TensorItems, check_items
from di4c_cli.data.source import find_items, pixel_shape
from di4c_cli.data.tokens import MASK_TOKEN, PackedItems
from di4c_cli.errors import UserError
from di4c_cli.foreign.arrays import ArrayArchive
from di4c_cli.foreign.images import open_image
from di4c_cli.foreign.text import pieces
from di4c_cli.foreign.tokenizer import read_tokenizer
from di4c_cli.model import Model
from di4c_cli.tasks.registry import get_task
from di4c_cli.training.pretrain_config import PretrainConfig

NAME_DATA = "Name a text file, a folder of text or images, or an .npz file with --data."
TOKENIZER_FILE = "tokenizer.json"
WINDOWS_PER_LENGTH = 4
"""Training windows start at every quarter of their length, so that a word is seen at several positions."""


def vocabulary_of(path: Path) -> int:
    """Symbols of a model with this tokenizer; a mask that has the last id is not one of them."""
    tokenizer = read_tokenizer(path)
    size: int = tokenizer.get_vocab_size()
    return size - 1 if tokenizer.id_to_token(size - 1) == MASK_TOKEN else size


def find_tokenizer(name: str) -> Path:
    """The file of `--tokenizer`: a tokenizer.json, or the folder that holds it."""
    path = Path(name) / TOKENIZER_FILE if Path(name).is_dir() else Path(name)
    if not path.is_file():
        raise UserError(f"There is no tokenizer file {path}.", "Name a tokenizer.json or its folder with --tokenizer.")
    return path


def train_tokenizer(data: Path, size: int, say: Callable[[str], None]) -> Path:
    """A byte-level BPE tokenizer of at most `size` entries, trained once on the text at `data`, then in the cache."""
    paths = text.text_files(data) if data.exists() else []
    if not paths:
        raise UserError(f"{data} holds no text to train a tokenizer on.", f"{NAME_DATA} Ids need --tokenizer FILE.")
    folder = cache.entry("tokenizers", {"files": cache.stamp(paths), "size": size})
    path = folder / TOKENIZER_FILE
    with cache.building(folder):
        if not path.is_file():
            say(f"Training a byte-level BPE tokenizer of {size} entries on {data}.")
            built = Tokenizer(models.BPE())
            built.pre_tokenizer = pre_tokenizers.ByteLevel(add_prefix_space=False)
            built.decoder = decoders.ByteLevel()
            trainer = trainers.BpeTrainer(
                vocab_size=size,
                special_tokens=[END_OF_TEXT],
                initial_alphabet=pre_tokenizers.ByteLevel.alphabet(),
                show_progress=False,
            )
            built.train_from_iterator(_pieces(paths), trainer)
            files.write_text(path, built.to_str())
    return path


def _pieces(paths: list[Path]) -> Iterator[str]:
    """The text of all files in pieces of bounded length."""
    for path in paths:
        for document in text.documents(path):
            yield from pieces(document) if isinstance(document, str) else document


def picture_shape(data: Path) -> list[int]:
    """(C, H, W) of the first image at a path."""
    if data.is_dir() and cifar.find_cifar(data) is not None:
        return [3, 32, 32]
    if data.is_dir() and (found := images.ImageFiles(data).paths):
        height, width, *channels = open_image(found[0]).shape
        return [*(channels or [1]), height, width]
    if data.suffix == ".npz" and data.is_file():
        with ArrayArchive(data) as file:
            name = file.first(*images.IMAGE_ARRAYS)
            shape = file.read(name).shape if name else ()
        if len(shape) in (3, 4):
            return [*(shape[3:] or [1]), *shape[1:3]]
    raise UserError(f"{data} holds no images.", NAME_DATA)


class Selected:
    """Some of the items."""

    def __init__(self, items: Items, picks: list[int]) -> None:
        self.items, self.picks, self.length = items, picks, items.length

    def __len__(self) -> int:
        return len(self.picks)

    def rows(self, index: list[int], mirror: Tensor | None = None) -> tuple[Tensor, Tensor | None]:
        return self.items.rows([self.picks[item] for item in index], mirror)

    def name(self, item: int) -> str:
        return self.items.name(self.picks[item])


def open_data(recipe: PretrainConfig, model: Model) -> tuple[Items, Items]:
    """The training data and the held-out data for a model of which only the sizes matter."""
    if recipe.data == "embedded":
        assert recipe.task is not None
        data, where = get_task(recipe.task).data, f"embedded {recipe.task}"
        shape = pixel_shape(model)
        train: Items = TensorItems(data.train, data.train_label, shape, where)
        held_out: Items = TensorItems(data.held_out, data.held_out_label, shape, where)
    else:
        train = _find(recipe.data, model)
        if recipe.held_out is not None:
            held_out = _find(recipe.held_out, model)
        elif isinstance(train, PackedItems):
            codec = model.codec
            separator = codec.tokenizer.token_to_id(END_OF_TEXT) if isinstance(codec, Text) else None
            train, held_out = split(train, separator, recipe.held_out_share)
        else:
            train, held_out = select(train, recipe.held_out_share)
        if isinstance(train, PackedItems) and Path(recipe.data).suffix not in tokens.SUFFIXES:
            train = PackedItems(train.ids, train.length, train.where, train.frame, WINDOWS_PER_LENGTH)
    for items in (train, held_out):
        if not len(items):
            raise UserError(
                f"The data {recipe.data} is too small for training and held-out samples of {items.length} positions.",
                "Name more data with --data, or a shorter length with --set network.length=N.",
            )
    return train, held_out


def _find(name: str, model: Model) -> Items:
    try:
        items = find_items(name, model)
        if len(items):
            check_items(items, name, model.denoiser.length)
    except UserError as error:
        raise UserError(error.message, NAME_DATA) from error
    return items


def select(items: Items, share: float) -> tuple[Selected, Selected]:
    """Hold out every n-th item."""
    every, number = round(1 / share), range(len(items))
    train, rest = ([i for i in number if (i % every == every - 1) is chosen] for chosen in (False, True))
    return Selected(items, train), Selected(items, rest)


def split(items: PackedItems, separator: int | None, share: float) -> tuple[PackedItems, PackedItems]:
    """Hold out every n-th document; of fewer than n documents, the end of the text."""
    ids, every = items.ids[: len(items.ids)], round(1 / share)
    ends = np.flatnonzero(ids == separator) if separator is not None else np.zeros(0, int)
    if len(ends) < every:
        chosen = np.arange(len(ids)) >= len(ids) - int(len(ids) * share)
    else:
        chosen = np.searchsorted(ends, np.arange(len(ids))) % every == every - 1
    train, rest = (PackedItems(ids[mask], items.length, items.where, items.frame) for mask in (~chosen, chosen))
    return train, rest
