"""fashion: Fashion-MNIST as 7×7 codes of a small VQGAN, masked diffusion, ten classes."""

from __future__ import annotations

from typing import Any

import numpy as np
import torch

from di4c_cli import embedded
from di4c_cli.tasks.base import ImageTask, TaskData, split

VQGAN_FILE = "fashion-vqgan.safetensors"


class VqTask(ImageTask):
    """The codes of a VQGAN's images."""

    name = "fashion"
    class_names = (
        *("T-shirt", "trouser", "pullover", "dress", "coat"),
        *("sandal", "shirt", "sneaker", "bag", "ankle boot"),
    )
    classifier_name, image_side = "fashion-classifier", 28
    eval_steps, eval_samples = (1, 2, 4, 8), 1000
    steps_saved_samples = 1000

    def load_data(self) -> TaskData:
        with np.load(embedded.data("fashion.npz")) as file:
            x, label = file["codes"].astype(np.int64), file["label"].astype(np.int64)
        return split(torch.from_numpy(x), torch.from_numpy(label), len(x) // 5)

    def has_codec(self, entry: dict[str, Any]) -> bool:
        return entry.get("asset") == VQGAN_FILE
