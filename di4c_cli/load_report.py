"""The report on loading a model: what happened to every tensor, and whether that is acceptable."""

from __future__ import annotations

from collections import Counter
from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import TYPE_CHECKING

from di4c_cli.errors import UserError

if TYPE_CHECKING:
    from torch import Tensor

STATUSES = ("matched", "renamed", "unused", "unknown", "missing", "mismatch")
"""`renamed`: another name in the file; `unused`: left out on purpose; `unknown`: only in the file; `missing`: only in
the network; `mismatch`: another shape in the file."""
PROBLEM_STATUSES = ("missing", "mismatch", "unknown")


@dataclass(frozen=True)
class TensorEntry:
    """One tensor: its name in the network (in the file, if the network has none) and its status."""

    name: str
    status: str
    shape: tuple[int, ...]
    note: str = ""


@dataclass
class LoadReport:
    """Every tensor of the file and of the network, once."""

    entries: list[TensorEntry] = field(default_factory=list)

    @classmethod
    def compare(
        cls,
        expected: Mapping[str, Tensor],
        given: Mapping[str, Tensor],
        renamed: Mapping[str, str] | None = None,
        unused: Mapping[str, str] | None = None,
    ) -> LoadReport:
        """`expected` is the network's state, `given` holds the file's tensors under the network's names.

        `renamed` maps those names to the names in the file, `unused` maps names in the file to the reason for
        leaving them out.
        """
        renamed = renamed or {}
        entries = []
        for name, slot in expected.items():
            shape = tuple(slot.shape)
            if name not in given:
                entries.append(TensorEntry(name, "missing", shape))
            elif given[name].shape != slot.shape:
                found = "×".join(map(str, given[name].shape)) or "a number"
                entries.append(TensorEntry(name, "mismatch", shape, f"{found} in the file"))
            elif renamed.get(name, name) != name:
                entries.append(TensorEntry(name, "renamed", shape, renamed[name]))
            else:
                entries.append(TensorEntry(name, "matched", shape))
        foreign = [name for name in given if name not in expected]
        entries += [TensorEntry(name, "unknown", tuple(given[name].shape)) for name in foreign]
        entries += [TensorEntry(name, "unused", (), reason) for name, reason in (unused or {}).items()]
        return cls(entries)

    @property
    def counts(self) -> dict[str, int]:
        """The number of tensors of each status, in the order of `STATUSES`."""
        found = Counter(entry.status for entry in self.entries)
        return {status: found[status] for status in STATUSES if found[status]}

    @property
    def summary(self) -> str:
        """The counts as text."""
        return ", ".join(f"{count} {status}" for status, count in self.counts.items())

    def check(self, where: str) -> None:
        """Raise unless every tensor of the network was found with its shape and no tensor is left over."""
        problems = LoadReport([entry for entry in self.entries if entry.status in PROBLEM_STATUSES])
        if not problems.entries:
            return
        entry = problems.entries[0]
        shape = "×".join(map(str, entry.shape))
        story = {
            "missing": f"lacks '{entry.name}'",
            "mismatch": f"has '{entry.name}' as {entry.note} where the network needs {shape}",
            "unknown": f"holds '{entry.name}', which the network does not have",
        }[entry.status]
        message = f"{where} does not fit the network: it {story} ({problems.summary})."
        raise UserError(message, "Check the model's configuration or fetch it again.")

    def lines(self) -> list[str]:
        """The table as text, with a summary line at the end."""
        width = max((len(entry.name) for entry in self.entries), default=0)
        table = [
            f"{entry.status:<9}{entry.name:<{width}}  {'×'.join(map(str, entry.shape)):<12} {entry.note}".rstrip()
            for entry in self.entries
        ]
        return [*table, f"{len(self.entries)} tensors: {self.summary or 'none'}."]
