"""Numbered clean samples in memory or on disk, before shuffling: what every kind of data is turned into."""

from __future__ import annotations

from typing import Protocol

import torch
from torch import Tensor

from di4c_cli.errors import UserError


class Items(Protocol):
    """`len(items)` clean samples; `rows` reads some of them."""

    length: int
    """D of one sample."""
    shape: tuple[int, ...] | None
    """(C, H, W) for images, so that they can be flipped."""

    def __len__(self) -> int: ...

    def rows(self, index: list[int]) -> tuple[Tensor, Tensor | None]:
        """Samples `(n, D)` long and labels `(n,)`, or None where there are no labels."""
        ...


class TensorItems:
    """Samples held in memory."""

    def __init__(self, x: Tensor, label: Tensor | None = None, shape: tuple[int, ...] | None = None) -> None:
        self.x, self.label, self.shape = x, label, shape
        self.length = int(x.shape[1])

    def __len__(self) -> int:
        return len(self.x)

    def rows(self, index: list[int]) -> tuple[Tensor, Tensor | None]:
        pick = torch.as_tensor(index)
        return self.x[pick].long(), None if self.label is None else self.label[pick].long()


def check_items(items: Items, where: str, length: int, symbols: int, labels: int | None) -> None:
    """Refuse data that the teacher cannot have seen: nothing, another length, ids or labels out of range."""
    if len(items) == 0:
        raise UserError(f"The data {where} holds no samples.", "Name another source with --data.")
    if items.length != length:
        raise UserError(
            f"The data {where} has samples of {items.length} values, the teacher works on {length}.",
            "Name data of the teacher's kind with --data.",
        )
    x, label = items.rows([0])
    check_range(x, label, [0], where, symbols, labels)


def check_range(
    x: Tensor, label: Tensor | None, number: list[int], where: str, symbols: int, labels: int | None
) -> None:
    """Ids and labels within the teacher's; the first bad record is named."""
    bad = ((x < 0) | (x >= symbols)).any(1)
    if bool(bad.any()):
        row = int(bad.nonzero()[0])
        value = int(x[row].max()) if int(x[row].max()) >= symbols else int(x[row].min())
        raise UserError(
            f"{where}, record {number[row]}: id {value} is outside the teacher's vocabulary of {symbols}.",
            "Encode the data with the teacher's tokenizer.",
        )
    if label is not None and labels is not None:
        wrong = (label < -1) | (label >= labels)
        if bool(wrong.any()):
            row = int(wrong.nonzero()[0])
            raise UserError(
                f"{where}, record {number[row]}: label {int(label[row])} is none of the teacher's {labels}.",
                "Name data with the teacher's classes.",
            )
