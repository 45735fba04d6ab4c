"""The live table of a training run on stderr, with a bar and a picture of the newest samples in block characters.

Nothing is printed if stderr is not a terminal. A terminal without colours shows no picture.
"""

from __future__ import annotations

import time
from collections import deque
from pathlib import Path
from typing import Any

from rich.console import Console, Group
from rich.live import Live
from rich.progress_bar import ProgressBar
from rich.table import Table
from rich.text import Text

from di4c_cli.cli.console import cell
from di4c_cli.memory import peak_memory, training_device
from di4c_cli.training.pretrain_config import RunRecipe

REFRESH_SECONDS = 2.0
SHOWN_LINES = 8
FULL_WIDTH = 80
"""Columns of a terminal in which the whole table fits."""
SMOOTHING_DECAY = 0.9
PICTURE_COLUMNS, PICTURE_LINES = 64, 8
"""Size of the picture in characters; each shows two pixels, one above the other."""


class LiveTable:
    """Takes the metrics row of every step and shows a line of smoothed metrics every two seconds."""

    def __init__(self, recipe: RunRecipe, samples: Path | None = None) -> None:
        """`samples`: the run's folder of sample pictures."""
        self.samples = samples
        self._console = Console(stderr=True)
        self._live = Live(console=self._console, auto_refresh=False, transient=True)
        self._restart(recipe)

    def begin(self, recipe: RunRecipe) -> None:
        """Show the metrics of this recipe from now on: a run may begin with the student of another one."""
        if recipe is not self.recipe:
            self._restart(recipe)

    def _restart(self, recipe: RunRecipe) -> None:
        self.recipe = recipe
        self._metrics = recipe.method.live_metrics
        self._lines: deque[list[str]] = deque(maxlen=SHOWN_LINES)
        self._means: dict[str, float] = {}
        self._began = self._shown = time.monotonic()
        self._steps = 0

    def __enter__(self) -> LiveTable:
        self._live.start()
        return self

    def __exit__(self, *error: object) -> None:
        self._live.stop()

    def __call__(self, row: dict[str, Any]) -> None:
        """Add one row of metrics.jsonl."""
        if not self._console.is_terminal:
            return
        now = time.monotonic()
        if self._steps == 0:  # the rate counts training steps only, not the loading of models
            self._began = now - row["seconds"]
        self._steps += 1
        for name in self._metrics:
            value = row.get(name)
            if value is not None:
                self._means[name] = SMOOTHING_DECAY * self._means.get(name, value) + (1 - SMOOTHING_DECAY) * value
        if self._steps == 1 or now - self._shown > REFRESH_SECONDS:
            self._shown = now
            self._lines.append(self._line(row, now))
            done = (row["round"] - 1) * self.recipe.training.iterations + row["step"]
            total = self.recipe.rounds * self.recipe.training.iterations
            bar = ProgressBar(total, done, width=min(self._console.width, FULL_WIDTH))
            self._live.update(Group(self.table(self._console.width), bar, *self._picture()), refresh=True)

    def _picture(self) -> list[Text]:
        """The newest samples, if there are any and the terminal can show them."""
        newest = max(self.samples.glob("*.png"), default=None) if self.samples else None
        colours = self._console.color_system is not None and not self._console.no_color
        if newest is None or not colours or self._console.width < PICTURE_COLUMNS:
            return []
        return [cell(f"samples after {newest.stem.replace('-', ' ')}"), block_picture(newest)]

    def _line(self, row: dict[str, Any], now: float) -> list[str]:
        training = self.recipe.training
        rate = self._steps / max(now - self._began, 1e-9)
        left = (self.recipe.rounds - row["round"] + 1) * training.iterations - row["step"]
        step = f"{row['step']}/{training.iterations}"
        if self.recipe.rounds > 1:
            step = f"round {row['round']}/{self.recipe.rounds} {step}"
        metrics = [f"{self._means[name]:.3f}" if name in self._means else "-" for name in self._metrics]
        memory = f"{peak_memory(training_device()) / 2**20:.0f} MB"
        return [step, f"{rate:.3g}/s", duration(left / rate), *metrics, memory]

    def table(self, width: int) -> Table:
        """The last lines; a narrow terminal gets only the most important columns."""
        metrics = [name.removesuffix("_data") for name in self._metrics]
        names = ["step", "rate", "left", *metrics, "memory"]
        narrow = {"step", "left", *(name.removesuffix("_data") for name in self.recipe.method.narrow_metrics)}
        kept = [i for i, name in enumerate(names) if width >= FULL_WIDTH or name in narrow]
        table = Table(box=None, pad_edge=False, collapse_padding=True)
        for i in kept:
            table.add_column(cell(names[i]), justify="right")
        for line in self._lines:
            table.add_row(*(cell(line[i]) for i in kept))
        return table


def block_picture(path: Path) -> Text:
    """The first row of a square grid of images, two pixels in a character."""
    from PIL import Image  # a run without pictures need not wait for it

    with Image.open(path) as sheet:
        # a character is twice as high as wide, so these are the proportions of the crop
        row = sheet.convert("RGB").crop((0, 0, sheet.width, sheet.width * 2 * PICTURE_LINES // PICTURE_COLUMNS))
        pixels = row.resize((PICTURE_COLUMNS, 2 * PICTURE_LINES), Image.Resampling.BOX).load()
    shown = Text()
    for y in range(0, 2 * PICTURE_LINES, 2):
        for x in range(PICTURE_COLUMNS):
            upper, lower = ("#{:02x}{:02x}{:02x}".format(*pixels[x, y + i]) for i in (0, 1))
            shown.append("▀", style=f"{upper} on {lower}")
        shown.append("\n")
    return shown


def duration(seconds: float) -> str:
    """Seconds as 4 s, 3:20 or 2:05:00."""
    whole = round(seconds)
    if whole < 60:
        return f"{whole} s"
    hours, rest = divmod(whole, 3600)
    return f"{hours}:{rest // 60:02d}:{rest % 60:02d}" if hours else f"{rest // 60}:{rest % 60:02d}"
