"""What a run records: metrics of a step averaged over processes, metrics.jsonl, experiment trackers, a summary.

metrics.jsonl has one line per step; after any number of interruptions no line is missing or double.
"""

from __future__ import annotations

import importlib.util
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
from di4c_cli.errors import Failure, UserError
from di4c_cli.training.pretrain_config import RunRecipe
from di4c_cli.training.run_folder import MetricsRow, flatten, read_rows

BOOKKEEPING_KEYS = {"round", "step", "grad_norm", "lr", "skipped", "seconds"}
"""Keys of a row that the training loop adds to the metrics of the loss."""


class StepMetrics:
    """Sums over the backward passes of one step; `reduce` averages them over samples and processes."""

    def __init__(self) -> None:
        self.sums: dict[str, Tensor] = {}
        self.counts: dict[str, Tensor] = {}
        self.loss: Tensor | None = None

    def add(
        self, total: Tensor, terms: dict[str, Tensor], active: dict[str, Tensor], diagnostics: dict[str, Tensor]
    ) -> None:
        """Add one backward pass. A term counts the samples that it covers, a diagnostic those with a finite value."""
        total = _wide(total)
        self.loss = total if self.loss is None else self.loss + total
        for name, value in terms.items():
            if name != "total":  # each sample's share of the loss
                self._add(name, value, active.get(name, torch.ones_like(value, dtype=torch.bool)))
        for name, value in diagnostics.items():
            self._add(name, value, active.get(name, torch.isfinite(value)))

    def _add(self, name: str, value: Tensor, mask: Tensor) -> None:
        total, count = torch.where(mask, _wide(value), 0.0).sum(), _wide(mask.sum())
        self.sums[name] = self.sums.get(name, torch.zeros_like(total)) + total
        self.counts[name] = self.counts.get(name, torch.zeros_like(count)) + count

    def reduce(self, accelerator: Accelerator, passes: int, stop: bool, names: list[str]) -> tuple[MetricsRow, bool]:
        """Means over all processes, and whether any process was asked to stop, in one collective per step.

        `names` is the agreed order of the metrics and is kept from step to step. A process with a new name makes all
        processes agree again, because a term may cover samples of one process only.
        """
        packed = self._sum_over_processes(accelerator, passes, stop, names)
        if packed[1] > 0:
            found = accelerator.gather_for_metrics([sorted(self.sums)], use_gather_object=True)
            names[:] = sorted({*names, *(name for part in found for name in part)})
            packed = self._sum_over_processes(accelerator, passes, stop, names)
        sums, counts = packed[3 : 3 + len(names)], packed[3 + len(names) :]
        row: MetricsRow = {"loss": finite_or_none(packed[2])}
        for name, total, count in zip(names, sums, counts, strict=True):
            row[name] = finite_or_none(total / count) if count else None
        return row, packed[0] > 0

    def _sum_over_processes(self, accelerator: Accelerator, passes: int, stop: bool, names: list[str]) -> list[float]:
        assert self.loss is not None
        zero = torch.zeros_like(self.loss)
        parts = [zero + float(stop), zero + float(not self.sums.keys() <= set(names))]
        parts.append(self.loss / passes / accelerator.num_processes)
        parts += [table.get(name, zero) for table in (self.sums, self.counts) for name in names]
        out: list[float] = accelerator.reduce(torch.stack(parts), reduction="sum").tolist()
        return out


def _wide(value: Tensor) -> Tensor:
    """Sums are taken in float64 where the device supports it."""
    return value.detach().to(finest(value.device))


def finite_or_none(value: float) -> float | None:
    """JSON has no NaN and no infinity; both become null."""
    return value if math.isfinite(value) else None


class MetricsFile:
    """Appends rows unbuffered, so that a killed process loses at most the line that it was writing."""

    def __init__(self, path: Path, last: tuple[int, int]) -> None:
        """Keep the rows up to `last` = (round, step), drop the later ones, then append."""
        rows = [row for row in read_rows(path) if (row["round"], row["step"]) <= last]
        files.write_text(path, "".join(_line(row) for row in rows))
        self.path = path
        self._file = path.open("ab", buffering=0)

    def append(self, row: MetricsRow) -> None:
        """Append one row; fails if the file was deleted or moved, before a checkpoint creates the folder again."""
        # not by inode numbers: some network file systems change them at every look
        if os.fstat(self._file.fileno()).st_nlink == 0 or not self.path.exists():
            raise Failure(
                f"{self.path} was deleted or moved while the run was writing to it.",
                "Run the same command again; it goes on from the last checkpoint that is left.",
            )
        self._file.write(_line(row).encode())

    def sync(self) -> None:
        """Flush to the disk; called before a checkpoint of these steps is written."""
        os.fsync(self._file.fileno())

    def close(self) -> None:
        """Close the file; nothing is buffered, so a full disk cannot make this fail."""
        self._file.close()


def _line(row: MetricsRow) -> str:
    return json.dumps(row, allow_nan=False) + "\n"


def summary(metrics: Path) -> dict[str, Any]:
    """Steps, time, skipped steps, and the mean of every metric over the last tenth of the last round."""
    rows = read_rows(metrics)
    if not rows:
        return {"steps": 0, "seconds": 0.0, "skipped": 0}
    last = [row for row in rows if row["round"] == rows[-1]["round"]]
    tail = [row for row in last[-max(1, len(last) // 10) :] if row.get("loss") is not None]
    out: dict[str, Any] = {
        "steps": len(rows),
        "seconds": round(sum(row.get("seconds") or 0.0 for row in rows), 1),
        "skipped": sum(bool(row.get("skipped")) for row in rows),
    }
    for name in (key for key in last[-1] if key not in BOOKKEEPING_KEYS):
        values = [row[name] for row in tail if row.get(name) is not None]
        if values:
            out[name] = sum(values) / len(values)
    return out


def check_trackers(names: list[str]) -> None:
    """Reject a tracker whose package, which has the same name, is not installed, before anything is written."""
    for name in names:
        if importlib.util.find_spec(name) is None:
            raise UserError(f"The tracker '{name}' is not installed.", f"Run `pip install {name}`.")


def start_trackers(accelerator: Accelerator, recipe: RunRecipe, run_name: str) -> None:
    """Start the recipe's trackers; wandb without a key stays offline instead of asking for one."""
    if not recipe.training.trackers:
        return
    os.environ.setdefault("WANDB_SILENT", "true")
    if "WANDB_API_KEY" not in os.environ:
        os.environ.setdefault("WANDB_MODE", "offline")
    settings = flatten(recipe.model_dump(mode="json"))
    plain = {key: value if isinstance(value, (int, float, str)) else str(value) for key, value in settings.items()}
    accelerator.init_trackers(run_name.replace("/", "-"), config=plain)


def track(accelerator: Accelerator, row: MetricsRow, iterations: int) -> None:
    """Send one step to the trackers; rounds of `iterations` steps follow one another on one axis."""
    step = (row["round"] - 1) * iterations + row["step"]
    numbers = {key: value for key, value in row.items() if isinstance(value, (int, float))}
    accelerator.log(numbers, step=step)
