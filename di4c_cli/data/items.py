"""Numbered clean samples in memory or on disk, before shuffling; every kind of data becomes such items."""

from __future__ import annotations

from typing import Protocol

import torch
from torch import Tensor

from di4c_cli.errors import UserError


class Rows(Protocol):
    """Samples by number."""

    def rows(self, index: list[int], mirror: Tensor | None = None) -> tuple[Tensor, Tensor | None]:
        """Samples `(n, D)` long and labels `(n,)`, or None where there are no labels.

        `mirror` `(n,)` bool asks for mirror images; text ignores it.
        """

    def name(self, item: int) -> str:
        """The file and record of an item, for messages."""


class Items(Rows, Protocol):
    """`len(items)` clean samples of `length` D."""

    length: int

    def __len__(self) -> int: ...


class TensorItems:
    """Samples in memory, of any integer type; images of `shape` (C, H, W) can be mirrored."""

    def __init__(
        self, x: Tensor, label: Tensor | None = None, shape: tuple[int, ...] | None = None, where: str = "the data"
    ) -> None:
        self.x, self.label, self.shape, self.where = x, label, shape, where
        self.length = int(x.shape[1])

    def __len__(self) -> int:
        return len(self.x)

    def rows(self, index: list[int], mirror: Tensor | None = None) -> tuple[Tensor, Tensor | None]:
        pick = torch.as_tensor(index)
        x = self.x[pick].long()
        if mirror is not None and self.shape is not None:
            flipped = x.view(-1, *self.shape).flip(-1).reshape(x.shape)
            x = torch.where(mirror[:, None], flipped, x)
        return x, None if self.label is None else self.label[pick].long()

    def name(self, item: int) -> str:
        return f"{self.where}, record {item}"


def check_items(items: Items, where: str, length: int) -> None:
    """Reject empty data, and samples of another length than the teacher's."""
    if len(items) == 0:
        raise UserError(f"The data {where} holds no samples.", "Name another source with --data.")
    if items.length != length:
        problem = f"The data {where} has samples of {items.length} values, the teacher works on {length}."
        raise UserError(problem, "Name data of the teacher's kind with --data.")


def check_rows(
    items: Rows, index: list[int], x: Tensor, label: Tensor | None, symbols: int, labels: int | None
) -> None:
    """Reject ids and labels outside the teacher's ranges; the message names the first such record."""
    bad = ((x < 0) | (x >= symbols)).any(1)
    if bool(bad.any()):
        row = int(bad.nonzero()[0])
        value = int(x[row].max()) if int(x[row].max()) >= symbols else int(x[row].min())
        problem = f"{items.name(index[row])}: id {value} is outside the teacher's vocabulary of {symbols}."
        raise UserError(problem, "Encode the data with the teacher's tokenizer.")
    if label is not None and labels is not None:
        bad = (label < -1) | (label >= labels)
        if bool(bad.any()):
            row = int(bad.nonzero()[0])
            problem = f"{items.name(index[row])}: label {int(label[row])} is not below the teacher's {labels} classes."
            raise UserError(problem, "Name data with the teacher's classes.")
