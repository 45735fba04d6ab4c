"""tiny-digits: handwritten digits of 8×8 pixels with eight grey levels, masked diffusion, ten classes."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
import torch
from safetensors.torch import save_file

from di4c_cli import embedded
from di4c_cli.codec.pixels import Pixels
from di4c_cli.tasks.assets import train_classifier
from di4c_cli.tasks.base import ImageTask, Report, TaskData, split
from di4c_cli.tasks.config import PretrainConfig

SHAPE = (1, 8, 8)
HELD_OUT = 500
CLASSIFIER_LEVELS = (8, 16)
"""The classifier serves tiny-digits and tiny-pixels, so it is trained on both numbers of grey levels."""
CLASSIFIER_ITERATIONS = 2000


def load_digits(levels: int) -> TaskData:
    """Grey levels 0..16 quantised to `levels` equal classes."""
    with np.load(embedded.data("digits.npz")) as file:
        grey, label = file["x"].astype(np.int64), file["label"].astype(np.int64)
    x = torch.from_numpy(np.minimum(grey * levels // 16, levels - 1))
    return split(x, torch.from_numpy(label), HELD_OUT)


class DigitsTask(ImageTask):
    """The digits at eight grey levels."""

    name = "tiny-digits"
    levels = 8
    classifier_name, image_side = "digits-classifier", 8
    eval_steps, eval_samples = (1, 2, 4, 8), 1000
    steps_saved_samples = 2000

    def load_data(self) -> TaskData:
        return load_digits(self.levels)

    def has_codec(self, entry: dict[str, Any]) -> bool:
        return (
            entry.get("type") == "pixels" and (*entry["shape"],) == SHAPE and entry["levels"] == self.levels
        )

    def make_assets(
        self, config: PretrainConfig, out: Path, images: Path | None, tokenizer: bool, report: Report
    ) -> None:
        """The classifier."""
        train, labels, held, held_labels = [], [], [], []
        for levels in CLASSIFIER_LEVELS:
            data, codec = load_digits(levels), Pixels(SHAPE, levels)
            assert data.train_label is not None and data.held_out_label is not None
            train.append(codec.decode(data.train))
            labels.append(data.train_label.numpy())
            held.append(codec.decode(data.held_out))
            held_labels.append(data.held_out_label.numpy())
        model, accuracy = train_classifier(
            np.concatenate(train),
            np.concatenate(labels),
            (np.concatenate(held), np.concatenate(held_labels)),
            CLASSIFIER_ITERATIONS,
        )
        save_file(model.state_dict(), out / f"{self.classifier_name}.safetensors")
        report({"classifier_accuracy": accuracy})
