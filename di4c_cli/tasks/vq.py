"""tiny-vq: Fashion-MNIST as 7×7 codes of a small VQGAN, masked diffusion, ten classes."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
import torch
from safetensors.torch import save_file

from di4c_cli import embedded
from di4c_cli.network.vqgan import VQGAN
from di4c_cli.tasks.assets import to_signed, train_classifier, train_vqgan
from di4c_cli.tasks.base import ImageTask, Report, TaskData, split
from di4c_cli.tasks.config import PretrainConfig
from di4c_cli.tasks.fashion_mnist import FASHION_MNIST_FOLDER, fashion_mnist

VQGAN_FILE = "fashion-vqgan.safetensors"
CACHED_IMAGES = 25_000
CLASSIFIER_TRAINING_IMAGES = 50_000
ENCODED_AT_ONCE = 250


class VqTask(ImageTask):
    """The codes of a VQGAN's images."""

    name = "tiny-vq"
    classifier_name, image_side = "fashion-classifier", 28
    eval_steps, eval_samples = (1, 2, 4, 8), 500
    steps_saved_samples = 1000

    def load_data(self) -> TaskData:
        with np.load(embedded.data("fashion.npz")) as file:
            x, label = file["codes"].astype(np.int64), file["label"].astype(np.int64)
        return split(torch.from_numpy(x), torch.from_numpy(label), len(x) // 5)

    def has_codec(self, entry: dict[str, Any]) -> bool:
        return entry.get("asset") == VQGAN_FILE

    def make_assets(
        self, config: PretrainConfig, out: Path, images: Path | None, tokenizer: bool, report: Report
    ) -> None:
        """With `tokenizer`: the classifier, the VQGAN and the cache of codes, from the original images."""
        if not tokenizer or config.vqgan is None:
            return
        pixels, labels = fashion_mnist(images or FASHION_MNIST_FOLDER)
        classifier, accuracy = train_classifier(
            pixels[:CLASSIFIER_TRAINING_IMAGES],
            labels[:CLASSIFIER_TRAINING_IMAGES],
            (pixels[CLASSIFIER_TRAINING_IMAGES:], labels[CLASSIFIER_TRAINING_IMAGES:]),
            config.vqgan.classifier_iterations,
        )
        report({"classifier_accuracy": accuracy})
        torch.manual_seed(config.seed)
        vqgan = train_vqgan(VQGAN(**config.codec["vqgan"]), pixels, config.vqgan, report, config.seed)
        half = {name: tensor.half() for name, tensor in vqgan.state_dict().items()}
        vqgan.load_state_dict({name: tensor.float() for name, tensor in half.items()})
        with torch.no_grad():
            codes = torch.cat(
                [
                    vqgan.encode(to_signed(pixels[i : i + ENCODED_AT_ONCE]))
                    for i in range(0, CACHED_IMAGES, ENCODED_AT_ONCE)
                ]
            )
        save_file(classifier.state_dict(), out / f"{self.classifier_name}.safetensors")
        save_file(half, out / VQGAN_FILE)
        np.savez_compressed(
            out / "fashion.npz", codes=codes.numpy().astype(np.uint8), label=labels[:CACHED_IMAGES]
        )
