"""Feature networks of the image metrics: uint8 images to feature rows, with a name and a hash."""

from __future__ import annotations

import hashlib
from abc import ABC, abstractmethod
from pathlib import Path

import numpy as np
import torch
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


def file_digest(path: Path) -> str:
    """A hash of a file's bytes."""
    digest = hashlib.blake2b(digest_size=8)
    with path.open("rb") as handle:
        while block := handle.read(1 << 20):
            digest.update(block)
    return digest.hexdigest()


class FeatureNetwork(ABC):
    """uint8 images `(n, H, W)` or `(n, H, W, 3)` to features `(n, F)` and perhaps probabilities."""

    name: str
    digest: str

    @abstractmethod
    def embed(self, images: np.ndarray) -> tuple[np.ndarray, np.ndarray | None]:
        """Features and class probabilities (None for a network without classes)."""


class ClassifierFeatures(FeatureNetwork):
    """The embedded classifiers."""

    def __init__(self, classifier: Classifier, name: str) -> None:
        self.classifier, self.name = classifier, name
        self.digest = tensors_digest(classifier.state_dict())

    def embed(self, images: np.ndarray) -> tuple[np.ndarray, np.ndarray | None]:
        size = self.classifier.size
        if images.shape[1:] != (size, size):
            found = "×".join(map(str, images.shape[1:]))
            raise UserError(
                f"{self.name} looks at grey images of {size}×{size}, not {found}.",
                "Name a network for this size with --features.",
            )
        return self.classifier.embed(images)


class ScriptedFeatures(FeatureNetwork):
    """A TorchScript Inception (or any other network) from a local file.

    It is called with float images `(n, 3, H, W)` from 0 to 255 and answers with features `(n, F)`, or with a
    pair of features and logits. Greys are repeated to three channels; resizing is the script's own business,
    as in the published FID networks.
    """

    def __init__(self, path: Path, device: torch.device | str = "cpu", chunk: int = 16) -> None:
        if not path.is_file():
            raise UserError(
                f"There is no feature network {path}.", "Name a TorchScript file with --features."
            )
        try:
            self.network: nn.Module = torch.jit.load(str(path), map_location=device).eval()
        except (RuntimeError, ValueError) as error:
            first = str(error).splitlines()[0]
            raise UserError(
                f"{path} is not a TorchScript file: {first}.", "Export it with torch.jit.save."
            ) from error
        self.name, self.digest = path.name, file_digest(path)
        self.device, self.chunk = torch.device(device), chunk

    @torch.no_grad()
    def embed(self, images: np.ndarray) -> tuple[np.ndarray, np.ndarray | None]:
        colour = images if images.ndim == 4 else np.repeat(images[..., None], 3, axis=-1)
        rows, laws = [], []
        for start in range(0, len(colour), self.chunk):
            pixels = torch.from_numpy(colour[start : start + self.chunk]).permute(0, 3, 1, 2).float()
            features, probabilities = self._answer(pixels.to(self.device))
            rows.append(features)
            if probabilities is not None:
                laws.append(probabilities)
        return np.concatenate(rows), np.concatenate(laws) if laws else None

    def _answer(self, pixels: Tensor) -> tuple[np.ndarray, np.ndarray | None]:
        try:
            out = self.network(pixels)
        except RuntimeError as error:
            size = "×".join(map(str, pixels.shape[2:]))
            last = str(error).strip().splitlines()[-1]
            raise UserError(
                f"{self.name} does not take images of {size}: {last}.", "Name a network for this size."
            ) from error
        features, logits = out if isinstance(out, (tuple, list)) else (out, None)
        law = None if logits is None else logits.double().softmax(-1).cpu().numpy()
        return features.flatten(1).double().cpu().numpy(), law
