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

MAX_FEATURE_ROWS = 10_000
"""Feature rows kept for KID and precision/recall, which need the rows themselves."""


@dataclass
class FeatureReference:
    """Moments of all reference images and the features of the first `MAX_FEATURE_ROWS`.

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
        provenance |= {"source": self.source, "size": list(self.size)}
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
    kept: list[np.ndarray] = []
    digest, room, size = hashlib.blake2b(digest_size=8), MAX_FEATURE_ROWS, (0, 0)
    for images in batches:
        if len(images) == 0:
            continue
        digest.update(np.ascontiguousarray(images).tobytes())
        size = images.shape[1:3]
        features, _ = network.embed(images)
        moments = FeatureMoments.of(features) if moments is None else moments + FeatureMoments.of(features)
        kept.append(features[:room].astype(np.float32))
        room -= len(kept[-1])
    if moments is None:
        raise UserError(f"The reference '{name}' holds no images.", "Name a folder or file with images.")
    return FeatureReference(name, network.digest, digest.hexdigest(), moments, np.concatenate(kept), source, size)


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
