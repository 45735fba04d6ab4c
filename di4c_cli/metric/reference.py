"""Moments and features of the reference images, cached as .npz with provenance."""

from __future__ import annotations

import hashlib
import io
import json
import zipfile
from collections.abc import Iterable
from dataclasses import dataclass
from pathlib import Path

import numpy as np

from di4c_cli import files
from di4c_cli.errors import UserError
from di4c_cli.metric.feature_scores import FeatureMoments
from di4c_cli.metric.features import FeatureNetwork
from di4c_cli.metric.subsets import RandomRows

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
        buffer = io.BytesIO()
        arrays = {**vars(self.moments), "features": self.features.astype(np.float32)}
        arrays["provenance"] = np.array(json.dumps(provenance))
        np.savez_compressed(buffer, **arrays)
        files.write_bytes(path, buffer.getvalue())

    @classmethod
    def load(cls, path: Path) -> FeatureReference:
        """Read what `save` wrote."""
        try:
            with np.load(path, allow_pickle=False) as file:
                provenance = json.loads(str(file["provenance"]))
                moments = FeatureMoments(int(file["count"]), file["mean"], file["scatter"])
                features = file["features"]
                name, made_by, digest = (str(provenance[key]) for key in ("name", "network", "digest"))
                size = tuple(int(side) for side in provenance.get("size", ()))
        except (OSError, ValueError, KeyError, TypeError, EOFError, zipfile.BadZipFile) as error:
            raise UserError(f"{path} holds no reference statistics.", "Compute them again from the images.") from error
        if len(features) < moments.count and provenance.get("choice") != CHOICE:
            raise UserError(
                f"{path} holds the features of its first {len(features)} images, not of a random choice.",
                "Compute it again from the images.",
            )
        return cls(name, made_by, digest, moments, features, str(provenance.get("source", "")), size)


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
