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

    def __len__(self) -> int: ...

    def rows(self, index: list[int], mirror: Tensor | None = None) -> tuple[Tensor, Tensor | None]:
        """Samples `(n, D)` long and labels `(n,)`, or None where there are no labels.

        `mirror` `(n,)` bool asks for the mirror image; what has none (text) ignores it.
        """
        ...

    def name(self, item: int) -> str:
        """Which file and record an item is, for messages."""
        ...


class TensorItems:
    """Samples held in memory, of any integer type; `shape` (C, H, W) lets images be flipped."""

    def __init__(
        self,
        x: Tensor,
        label: Tensor | None = None,
        shape: tuple[int, ...] | None = None,
        where: str = "the data",
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
    """Refuse data of which there is none, or whose samples are not as long as the teacher's."""
    if len(items) == 0:
        raise UserError(f"The data {where} holds no samples.", "Name another source with --data.")
    if items.length != length:
        raise UserError(
            f"The data {where} has samples of {items.length} values, the teacher works on {length}.",
            "Name data of the teacher's kind with --data.",
        )


def check_rows(
    items: Items, index: list[int], x: Tensor, label: Tensor | None, symbols: int, labels: int | None
) -> None:
    """Ids and labels must be within the teacher's; the first bad record is named."""
    bad = ((x < 0) | (x >= symbols)).any(1)
    if bool(bad.any()):
        row = int(bad.nonzero()[0])
        value = int(x[row].max()) if int(x[row].max()) >= symbols else int(x[row].min())
        raise UserError(
            f"{items.name(index[row])}: id {value} is outside the teacher's vocabulary of {symbols}.",
            "Encode the data with the teacher's tokenizer.",
        )
    if label is not None and labels is not None:
        wrong = (label < -1) | (label >= labels)
        if bool(wrong.any()):
            row = int(wrong.nonzero()[0])
            raise UserError(
                f"{items.name(index[row])}: label {int(label[row])} is none of the teacher's {labels}.",
                "Name data with the teacher's classes.",
            )
