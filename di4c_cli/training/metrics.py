"""metrics.jsonl: one line a step, none missing and none twice after any number of interruptions."""

from __future__ import annotations

import json
import math
import os
from pathlib import Path
from typing import Any

import torch
from accelerate import Accelerator
from torch import Tensor

from di4c_cli import files
from di4c_cli.draw import finest
from di4c_cli.errors import Failure

Row = dict[str, Any]


class MetricsFile:
    """Appends rows unbuffered, so that a killed process loses at most the line it was writing."""

    def __init__(self, path: Path, last: tuple[int, int]) -> None:
        """Keep the rows up to `last` = (round, step) and drop what comes after it, then append."""
        rows = [row for row in read_rows(path) if (row["round"], row["step"]) <= last]
        files.write_text(path, "".join(_line(row) for row in rows))
        self.path = path
        self._file = path.open("ab", buffering=0)

    def append(self, row: Row) -> None:
        """One more line, and a look whether anybody would ever find it."""
        self._check_place()
        self._file.write(_line(row).encode())

    def _check_place(self) -> None:
        """A folder deleted or moved away under the run would be made again, half empty, at the next checkpoint."""
        # not by inode numbers: some network file systems make them up anew at every look
        if os.fstat(self._file.fileno()).st_nlink == 0 or not self.path.exists():
            raise Failure(
                f"{self.path} was deleted or moved while the run was writing to it.",
                "Run the same command again; it goes on from the last checkpoint that is left.",
            )

    def sync(self) -> None:
        """To the disk; called before a checkpoint claims these steps."""
        os.fsync(self._file.fileno())

    def close(self) -> None:
        """Nothing is buffered, so this cannot fail for want of space."""
        self._file.close()


def read_rows(path: Path) -> list[Row]:
    """The complete lines of a metrics file; a torn last line is left out."""
    if not path.is_file():
        return []
    rows = []
    for line in path.read_bytes().split(b"\n"):
        try:
            rows.append(json.loads(line))
        except ValueError:
            continue
    return rows


def _line(row: Row) -> str:
    return json.dumps(row, allow_nan=False) + "\n"


def number(value: float) -> float | None:
    """JSON has no NaN and no infinity; they become null."""
    return value if math.isfinite(value) else None


def _wide(value: Tensor) -> Tensor:
    """Sums are taken in float64, where the device has it."""
    return value.detach().to(finest(value.device))


class StepFigures:
    """Sums over the backward passes of one step; averaged over samples and processes at its end."""

    def __init__(self) -> None:
        self.sums: dict[str, Tensor] = {}
        self.counts: dict[str, Tensor] = {}
        self.loss: Tensor | None = None

    def add(
        self,
        total: Tensor,
        terms: dict[str, Tensor],
        active: dict[str, Tensor],
        diagnostics: dict[str, Tensor],
    ) -> None:
        """One backward pass. A term counts the samples it covers, a diagnostic figure all that have one."""
        total = _wide(total)
        self.loss = total if self.loss is None else self.loss + total
        for name, value in terms.items():
            if name == "total":  # each sample's share of the loss, which is there already
                continue
            self._put(name, value, active.get(name, torch.ones_like(value, dtype=torch.bool)))
        for name, value in diagnostics.items():
            self._put(name, value, active.get(name, torch.isfinite(value)))

    def _put(self, name: str, value: Tensor, mask: Tensor) -> None:
        total, count = torch.where(mask, _wide(value), 0.0).sum(), _wide(mask.sum())
        self.sums[name] = self.sums.get(name, torch.zeros_like(total)) + total
        self.counts[name] = self.counts.get(name, torch.zeros_like(count)) + count

    def reduce(self, accelerator: Accelerator, passes: int, stop: bool, names: list[str]) -> tuple[Row, bool]:
        """Mean figures over all processes, and whether any process was asked to stop: one exchange a step.

        `names` is the agreed order of figures, kept from step to step; a process that meets a new one asks
        all to agree anew, since a term may cover samples of one process alone.
        """
        packed = self._exchange(accelerator, passes, stop, names)
        if packed[1] > 0:
            found = accelerator.gather_for_metrics([sorted(self.sums)], use_gather_object=True)
            names[:] = sorted({*names, *(name for part in found for name in part)})
            packed = self._exchange(accelerator, passes, stop, names)
        sums, counts = packed[3 : 3 + len(names)], packed[3 + len(names) :]
        row: Row = {"loss": number(packed[2])}
        for name, total, count in zip(names, sums, counts, strict=True):
            row[name] = number(total / count) if count else None
        return row, packed[0] > 0

    def _exchange(self, accelerator: Accelerator, passes: int, stop: bool, names: list[str]) -> list[float]:
        assert self.loss is not None
        zero = torch.zeros_like(self.loss)
        parts = [zero + float(stop), zero + float(not self.sums.keys() <= set(names))]
        parts.append(self.loss / passes / accelerator.num_processes)
        parts += [table.get(name, zero) for table in (self.sums, self.counts) for name in names]
        out: list[float] = accelerator.reduce(torch.stack(parts), reduction="sum").tolist()
        return out
