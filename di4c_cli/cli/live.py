"""The live table of a training run on stderr; nothing at all when that is not a terminal."""

from __future__ import annotations

import resource
import sys
import time
from collections import deque
from types import TracebackType
from typing import Any

from di4c_cli.recipe import Recipe

EVERY = 2.0
"""Seconds between two lines of the table."""
LINES = 8
WIDE = 80
NARROW = ("step", "left", "loss", "correlation", "kl")
SMOOTH = 0.9


class LiveTable:
    """Give it every row; it shows a smoothed line every two seconds."""

    def __init__(self, recipe: Recipe) -> None:
        from rich.console import Console
        from rich.live import Live

        self.recipe = recipe
        self._shown_names = recipe.method.live_metrics
        self._console = Console(stderr=True)
        self._live = None
        if self._console.is_terminal:
            self._live = Live(console=self._console, auto_refresh=False, transient=True)
        self._lines: deque[list[str]] = deque(maxlen=LINES)
        self._means: dict[str, float] = {}
        self._began = self._shown = time.monotonic()
        self._steps = 0

    def __enter__(self) -> LiveTable:
        if self._live is not None:
            self._live.start()
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        if self._live is not None:
            self._live.stop()

    def __call__(self, row: dict[str, Any]) -> None:
        """One step of metrics.jsonl."""
        if self._live is None:
            return
        now = time.monotonic()
        if self._steps == 0:  # the rate is that of the steps, not of loading models
            self._began = now - row["seconds"]
        self._steps += 1
        for name in self._shown_names:
            value = row.get(name)
            if value is not None:
                self._means[name] = SMOOTH * self._means.get(name, value) + (1 - SMOOTH) * value
        if self._steps == 1 or now - self._shown > EVERY:
            self._shown = now
            self._lines.append(self._line(row, now))
            self._live.update(self.table(self._console.width), refresh=True)

    def _line(self, row: dict[str, Any], now: float) -> list[str]:
        training = self.recipe.training
        rate = self._steps / max(now - self._began, 1e-9)
        left = (self.recipe.rounds - row["round"] + 1) * training.iterations - row["step"]
        place = f"{row['step']}/{training.iterations}"
        if self.recipe.rounds > 1:
            place = f"round {row['round']}/{self.recipe.rounds} {place}"
        figures = [f"{self._means[name]:.3f}" if name in self._means else "-" for name in self._shown_names]
        return [place, f"{rate:.3g}/s", duration(left / rate), *figures, memory()]

    def table(self, width: int) -> Any:
        """The last lines; in a narrow terminal only the columns that decide whether to go on."""
        from rich.table import Table

        names = [
            "step",
            "rate",
            "left",
            *(name.removesuffix("_data") for name in self._shown_names),
            "memory",
        ]
        kept = [number for number, name in enumerate(names) if width >= WIDE or name in NARROW]
        table = Table(box=None, pad_edge=False, collapse_padding=True)
        for number in kept:
            table.add_column(names[number], justify="right")
        for line in self._lines:
            table.add_row(*(line[number] for number in kept))
        return table


def duration(seconds: float) -> str:
    """Seconds as 4 s, 3:20 or 2:05:00."""
    whole = round(seconds)
    if whole < 60:
        return f"{whole} s"
    hours, rest = divmod(whole, 3600)
    return f"{hours}:{rest // 60:02d}:{rest % 60:02d}" if hours else f"{rest // 60}:{rest % 60:02d}"


def memory() -> str:
    """Peak memory so far: of the GPU if one is used, else of this process."""
    torch = sys.modules.get("torch")
    if torch is not None and torch.cuda.is_available():
        return f"{torch.cuda.max_memory_allocated() / 2**20:.0f} MB"
    peak = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss
    return f"{peak / (2**20 if sys.platform == 'darwin' else 2**10):.0f} MB"
