"""Feature networks of the image metrics: uint8 images to feature rows, with a name and a hash."""

from __future__ import annotations

import hashlib
from abc import ABC, abstractmethod
from pathlib import Path

import numpy as np
import torch
import torch.nn.functional as F
from torch import Tensor, nn

from di4c_cli.errors import UserError
from di4c_cli.metric.classifier import Classifier


def tensors_digest(tensors: dict[str, Tensor]) -> str:
    """A hash of names, shapes and bits of a state dict."""
    digest = hashlib.blake2b(digest_size=8)
    for name in sorted(tensors):
        tensor = tensors[name].detach().cpu().contiguous()
        digest.update(f"{name}{tuple(tensor.shape)}{tensor.dtype}".encode())
        digest.update(tensor.flatten().view(torch.uint8).numpy().tobytes() if tensor.numel() else b"")
    return digest.hexdigest()


class FeatureNetwork(ABC):
    """uint8 images `(n, H, W)` or `(n, H, W, 3)` to features and perhaps class probabilities."""

    name: str
    digest: str
    chunk: int
    """Images in memory as floats at once."""

    @abstractmethod
    def run(self, images: Tensor) -> tuple[Tensor, Tensor | None]:
        """Features and logits (None for a network without classes) of float images from 0 to 255."""

    @torch.no_grad()
    def embed(self, images: np.ndarray) -> tuple[np.ndarray, np.ndarray | None]:
        """Features `(n, F)` and class probabilities `(n, C)` or None, in float64."""
        rows, classes = [], []
        for start in range(0, len(images), self.chunk):
            part = images[start : start + self.chunk].astype(np.float32)
            features, logits = self.run(torch.from_numpy(part))
            rows.append(features.cpu().double().numpy())
            if logits is not None:
                classes.append(logits.cpu().double().softmax(-1).numpy())
        return np.concatenate(rows), np.concatenate(classes) if classes else None


class ClassifierFeatures(FeatureNetwork):
    """The embedded classifiers, of grey images from 0 to 1."""

    chunk = 512

    def __init__(self, classifier: Classifier, name: str) -> None:
        self.classifier, self.name = classifier, name
        self.digest = tensors_digest(classifier.state_dict())

    def run(self, images: Tensor) -> tuple[Tensor, Tensor]:
        size = self.classifier.size
        if images.shape[1:] != (size, size):
            found = "×".join(map(str, images.shape[1:]))
            raise UserError(
                f"{self.name} takes grey images of {size}×{size}, not {found}.",
                "Name a network for this size with --features.",
            )
        features = self.classifier.features(images / 255)
        return features, self.classifier.classify(features)


FEATURE_INPUTS = ("bytes", "tf299", "tf299-stretched", "torch299")
"""Input of a TorchScript network: float images from 0 to 255 as they are, or the input of TensorFlow's Inception.

`tf299-stretched` stretches every image to the whole range first, as the authors' ImageNet metrics do. `torch299` is
torch's bilinear resize and 2 x / 255 - 1, the input of the library of the paper's CIFAR-10 metrics.
"""


def tf_resize(images: Tensor, size: int = 299) -> Tensor:
    """`(n, C, H, W)` -> `(n, C, size, size)`, bilinear as TensorFlow 1 did it for the published FID.

    Output pixel i looks at i · H / size, without the half-pixel shift of other libraries.
    """
    for axis in (2, 3):
        old = images.shape[axis]
        place = torch.arange(size, dtype=torch.float64) * old / size
        left = place.floor().long()
        shape = [1, 1, size, 1] if axis == 2 else [1, 1, 1, size]
        share = (place - left).to(images.dtype).view(shape).to(images.device)
        near = images.index_select(axis, left.to(images.device))
        far = images.index_select(axis, (left + 1).clamp_max(old - 1).to(images.device))
        images = near * (1 - share) + far * share
    return images


def stretched(images: Tensor) -> Tensor:
    """`(n, C, H, W)` from 0 to 255, each image with its own minimum at 0 and maximum at 255, rounded down."""
    low, high = images.amin((1, 2, 3), keepdim=True), images.amax((1, 2, 3), keepdim=True)
    return ((images - low) / (high - low).clamp_min(1) * 255).floor()


def network_input(pixels: Tensor, kind: str) -> Tensor:
    """`(n, C, H, W)` from 0 to 255 as one of `FEATURE_INPUTS`."""
    if kind == "bytes":
        return pixels
    if kind == "torch299":
        return F.interpolate(pixels / 255, size=(299, 299), mode="bilinear", align_corners=False) * 2 - 1
    return (tf_resize(stretched(pixels) if kind == "tf299-stretched" else pixels) - 128) / 128


class ScriptedFeatures(FeatureNetwork):
    """A TorchScript Inception (or any other network) from a local file.

    It returns features `(n, F)` or `(n, F, h, w)`, or with a pair of features and logits; without logits
    there is no inception score. Greys are repeated to three channels. `feature_input` is one of `FEATURE_INPUTS`.
    """

    def __init__(
        self, path: Path, device: torch.device | str = "cpu", chunk: int = 16, feature_input: str = "bytes"
    ) -> None:
        if not path.is_file():
            raise UserError(f"There is no feature network {path}.", "Name a TorchScript file with --features.")
        if feature_input not in FEATURE_INPUTS:
            raise UserError(f"Unknown network input '{feature_input}'.", f"Choose one of {', '.join(FEATURE_INPUTS)}.")
        try:
            self.network: nn.Module = torch.jit.load(str(path), map_location=device).eval()
        except (RuntimeError, ValueError) as error:
            first = str(error).splitlines()[0]
            raise UserError(f"{path} is not a TorchScript file: {first}.", "Export it with torch.jit.save.") from error
        digest = hashlib.blake2b(path.read_bytes(), digest_size=8).hexdigest()
        self.name, self.digest = f"{path.name} ({feature_input})", f"{digest}-{feature_input}"
        self.device, self.chunk, self.feature_input = torch.device(device), chunk, feature_input

    def run(self, images: Tensor) -> tuple[Tensor, Tensor | None]:
        colour = images if images.ndim == 4 else images[..., None].repeat(1, 1, 1, 3)
        pixels = colour.permute(0, 3, 1, 2).to(self.device)
        try:
            out = self.network(network_input(pixels, self.feature_input))
        except RuntimeError as error:
            size = "×".join(map(str, pixels.shape[2:]))
            last = str(error).strip().splitlines()[-1]
            raise UserError(
                f"{self.name} does not take images of {size}: {last}.", "Name a network for this size."
            ) from error
        features, logits = out if isinstance(out, (tuple, list)) else (out, None)
        return features.flatten(2).mean(2) if features.ndim > 2 else features, logits
