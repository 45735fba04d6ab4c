"""The account of a loading: what became of every tensor, and whether that is acceptable."""

from __future__ import annotations

from collections import Counter
from collections.abc import Collection, Mapping
from dataclasses import dataclass, field
from typing import TYPE_CHECKING

from di4c_cli.errors import UserError

if TYPE_CHECKING:
    from torch import Tensor

STATUSES = {
    "matched": "same name in the file and in the network",
    "renamed": "another name in the file",
    "fresh": "part of λ, drawn anew because the file comes from a model without λ",
    "unused": "left out on purpose",
    "unknown": "in the file, but not in the network",
    "missing": "in the network, but not in the file",
    "mismatch": "another shape in the file",
}
PROBLEMS = ("missing", "mismatch", "unknown")


@dataclass(frozen=True)
class Row:
    """One tensor: its name in the network (in the file, if the network has none), and what happened to it."""

    name: str
    status: str
    shape: tuple[int, ...]
    note: str = ""


@dataclass
class Account:
    """Every tensor of the file and of the network, once."""

    rows: list[Row] = field(default_factory=list)

    @classmethod
    def compare(
        cls,
        expected: Mapping[str, Tensor],
        given: Mapping[str, Tensor],
        renamed: Mapping[str, str] | None = None,
        unused: Mapping[str, str] | None = None,
        fresh: Collection[str] = (),
    ) -> Account:
        """`expected` is the network's state, `given` the file's tensors under the network's names.

        `renamed` maps those to the names in the file, `unused` names in the file to the reason for leaving
        them out; `fresh` are parameters that may be missing because they start anew.
        """
        renamed = renamed or {}
        rows = []
        for name, slot in expected.items():
            shape = tuple(slot.shape)
            if name not in given:
                rows.append(Row(name, "fresh" if name in fresh else "missing", shape))
            elif given[name].shape != slot.shape:
                found = "×".join(map(str, given[name].shape)) or "a number"
                rows.append(Row(name, "mismatch", shape, f"{found} in the file"))
            elif renamed.get(name, name) != name:
                rows.append(Row(name, "renamed", shape, renamed[name]))
            else:
                rows.append(Row(name, "matched", shape))
        rows += [Row(name, "unknown", tuple(given[name].shape)) for name in given if name not in expected]
        rows += [Row(name, "unused", (), reason) for name, reason in (unused or {}).items()]
        return cls(rows)

    @property
    def counts(self) -> dict[str, int]:
        """How many tensors of each status, in the order of `STATUSES`."""
        found = Counter(row.status for row in self.rows)
        return {status: found[status] for status in STATUSES if found[status]}

    def check(self, where: str) -> None:
        """Raise unless every tensor of the network was found with its shape and nothing is left over."""
        problems = [row for row in self.rows if row.status in PROBLEMS]
        if not problems:
            return
        counts = ", ".join(f"{count} {status}" for status, count in self.counts.items() if status in PROBLEMS)
        row = problems[0]
        shape = "×".join(map(str, row.shape))
        story = {
            "missing": f"lacks '{row.name}'",
            "mismatch": f"has '{row.name}' as {row.note} where the network needs {shape}",
            "unknown": f"holds '{row.name}', which the network does not have",
        }[row.status]
        raise UserError(
            f"{where} does not fit the network: it {story} ({counts}).",
            "Check the model's configuration or fetch it again.",
        )

    def lines(self) -> list[str]:
        """The table as text, with a summary line at the end."""
        width = max((len(row.name) for row in self.rows), default=0)
        table = [
            f"{row.status:<9}{row.name:<{width}}  {'×'.join(map(str, row.shape)):<12} {row.note}".rstrip()
            for row in self.rows
        ]
        total = ", ".join(f"{count} {status}" for status, count in self.counts.items())
        return [*table, f"{len(self.rows)} tensors: {total or 'none'}."]
