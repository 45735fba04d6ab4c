"""digits: handwritten digits of 8×8 pixels with eight grey levels, masked diffusion, ten classes."""

from __future__ import annotations

from typing import Any

import numpy as np
import torch

from di4c_cli import embedded
from di4c_cli.tasks.base import ImageTask, TaskData, split

SHAPE = (1, 8, 8)
HELD_OUT = 500


def load_digits(levels: int) -> TaskData:
    """Grey levels 0..16 quantised to `levels` equal classes."""
    with np.load(embedded.data("digits.npz")) as file:
        grey, label = file["x"].astype(np.int64), file["label"].astype(np.int64)
    x = torch.from_numpy(np.minimum(grey * levels // 16, levels - 1))
    return split(x, torch.from_numpy(label), HELD_OUT)


class DigitsTask(ImageTask):
    """The digits at eight grey levels."""

    name = "digits"
    class_names = tuple("0123456789")
    levels = 8
    classifier_name, image_side = "digits-classifier", 8
    eval_steps, eval_samples = (1, 2, 4, 8), 1000
    steps_saved_samples = 2000

    def load_data(self) -> TaskData:
        return load_digits(self.levels)

    def has_codec(self, entry: dict[str, Any]) -> bool:
        return entry.get("type") == "pixels" and (*entry["shape"],) == SHAPE and entry["levels"] == self.levels
