"""Moments and features of the reference images, cached as .npz with provenance."""

from __future__ import annotations

import hashlib
import json
from collections.abc import Iterable
from dataclasses import dataclass
from pathlib import Path

import numpy as np

from di4c_cli import files
from di4c_cli.errors import UserError
from di4c_cli.foreign.arrays import ArrayArchive
from di4c_cli.foreign.structured import StructureError, parse_json
from di4c_cli.metric.feature_scores import FeatureMoments
from di4c_cli.metric.features import FeatureNetwork
from di4c_cli.metric.subsets import RandomRows

MAX_PROVENANCE_BYTES = 2**20
"""Names and hashes have some hundred bytes."""
MAX_COUNT = 10**9
"""The largest collections of images have 5 * 10^9, and none serves as a reference."""
COMPUTE_AGAIN = "Compute them again from the images."
CHOICE = "by hash"
"""How rows are chosen; version 0.1 kept the first ones."""


@dataclass
class FeatureReference:
    """Moments of all reference images, and features of a random choice of them in random order.

    `network` and `digest` are hashes of the feature network and of the images, `source` says where the images were,
    `size` is their height and width, empty if unknown.
    """

    name: str
    network: str
    digest: str
    moments: FeatureMoments
    features: np.ndarray
    source: str = ""
    size: tuple[int, ...] = ()

    @property
    def count(self) -> int:
        return self.moments.count

    def check_network(self, network: FeatureNetwork) -> None:
        """Reject statistics of another feature network."""
        if network.digest != self.network:
            raise UserError(
                f"The reference statistics '{self.name}' were computed with another feature network.",
                f"Compute them again from the images with {network.name}.",
            )

    def save(self, path: Path) -> None:
        """Write the .npz, provenance inside."""
        provenance = {"name": self.name, "network": self.network, "digest": self.digest, "count": self.count}
        provenance |= {"source": self.source, "size": list(self.size), "choice": CHOICE}
        arrays = {**vars(self.moments), "features": self.features.astype(np.float32)}
        arrays["provenance"] = np.array(json.dumps(provenance))
        files.write_with(path, lambda file: np.savez_compressed(file, **arrays))

    @classmethod
    def load(cls, path: Path) -> FeatureReference:
        """Read what `save` wrote."""
        with ArrayArchive(path) as file:
            text = str(file.read("provenance", "U", MAX_PROVENANCE_BYTES))
            count, mean, scatter, features = (file.read(name) for name in ("count", "mean", "scatter", "features"))
        try:
            provenance = parse_json(text)
            name, made_by, digest = (str(provenance[key]) for key in ("name", "network", "digest"))
            size = tuple(int(side) for side in provenance.get("size", ()))
        except (StructureError, ValueError, KeyError, TypeError, AttributeError) as error:
            raise UserError(f"{path} holds no reference statistics.", COMPUTE_AGAIN) from error
        problem = _problem(count, mean, scatter, features)
        if problem:
            raise UserError(f"{path} holds no reference statistics: {problem}.", COMPUTE_AGAIN)
        moments = FeatureMoments(int(count), mean.astype(np.float64), scatter.astype(np.float64))
        if len(features) < moments.count and provenance.get("choice") != CHOICE:
            raise UserError(
                f"{path} holds the features of its first {len(features)} images, not of a random choice.", COMPUTE_AGAIN
            )
        return cls(name, made_by, digest, moments, features, str(provenance.get("source", "")), size)


def _problem(count: np.ndarray, mean: np.ndarray, scatter: np.ndarray, features: np.ndarray) -> str:
    """What is wrong with stored statistics; empty if nothing is."""
    width = len(mean) if mean.ndim == 1 else 0
    if count.ndim or count.dtype.kind not in "ui" or not 1 <= int(count) <= MAX_COUNT:
        return f"the count is not a number from 1 to {MAX_COUNT}"
    if not width or scatter.shape != (width, width) or features.ndim != 2 or features.shape[1] != width:
        return f"the shapes {mean.shape}, {scatter.shape} and {features.shape} do not fit together"
    if not 1 <= len(features) <= int(count):
        return f"it has {len(features)} rows of features for {int(count)} images"
    numbers = (mean, scatter, features)
    if any(array.dtype.kind != "f" or not np.isfinite(array).all() for array in numbers):
        return "the numbers are not finite floats"
    # float32 features of 10^5 images sum to rounding errors of 10^-3
    if not np.allclose(scatter, scatter.T, rtol=1e-3, atol=1e-3 * float(np.abs(scatter).max())):
        return "the covariance is not symmetric"
    return "" if (np.diagonal(scatter) >= 0).all() else "a variance is negative"


def require_size(name: str, reference: tuple[int, ...], samples: tuple[int, ...]) -> None:
    """Heights and widths must agree: a network that takes any size would measure the difference in size."""
    if reference[:2] != samples[:2]:
        found, wanted = ("×".join(map(str, size[:2])) for size in (reference, samples))
        raise UserError(
            f"The images of the reference '{name}' are {found}, the samples {wanted}.", "Resize one of them."
        )


def make_reference(
    name: str, network: FeatureNetwork, batches: Iterable[np.ndarray], source: str = ""
) -> FeatureReference:
    """Embed batches of uint8 images; constant memory apart from the kept features."""
    moments: FeatureMoments | None = None
    chosen = RandomRows()
    digest, size = hashlib.blake2b(digest_size=8), (0, 0)
    for images in batches:
        if len(images) == 0:
            continue
        digest.update(np.ascontiguousarray(images).tobytes())
        size = images.shape[1:3]
        features, _ = network.embed(images)
        moments = FeatureMoments.of(features) if moments is None else moments + FeatureMoments.of(features)
        chosen.add(images, features)
    if moments is None:
        raise UserError(f"The reference '{name}' holds no images.", "Name a folder or file with images.")
    return FeatureReference(name, network.digest, digest.hexdigest(), moments, chosen.rows(), source, size)


def cached_reference(
    path: Path, name: str, network: FeatureNetwork, batches: Iterable[np.ndarray], source: str
) -> FeatureReference:
    """The reference at `path` if this network made it from this source, else a fresh one, written there."""
    try:
        found = FeatureReference.load(path)
        if found.network == network.digest and found.source == source:
            return found
    except UserError:
        pass  # a missing or damaged cache is computed again
    made = make_reference(name, network, batches, source)
    made.save(path)
    return made
