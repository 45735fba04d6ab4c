"""Real Inception features on real images, outside the suite: FID and KID of real against real, and against noise.

    python -m tools.real_inception default_1.pt CIFAR.png [n]

docs/evaluation.md, under "Protocols", says where both files are found.
"""

from __future__ import annotations

import sys
from pathlib import Path

import numpy as np
from PIL import Image

from di4c_cli.metric.feature_scores import FeatureMoments, frechet, kernel_distance
from di4c_cli.metric.features import ScriptedFeatures


def read_images(path: Path, count: int) -> np.ndarray:
    """The first images as uint8 `(count, 32, 32, 3)`."""
    Image.MAX_IMAGE_PIXELS = None
    rows = np.asarray(Image.open(path).convert("RGB"))
    return rows.reshape(-1, 32, 32, 3)[:count]


def main(network: str, images: str, n: str = "100") -> None:
    count = int(n)
    scripted = ScriptedFeatures(Path(network), feature_input="tf299")
    real = read_images(Path(images), 2 * count)
    noise = np.random.default_rng(0).integers(0, 256, size=(count, 32, 32, 3)).astype(np.uint8)
    half, other, bad = (scripted.embed(x)[0] for x in (real[:count], real[count:], noise))
    reference = FeatureMoments.of(half)
    found = {
        name: (frechet(FeatureMoments.of(rows), reference), kernel_distance(rows, half))
        for name, rows in (("real", other), ("noise", bad))
    }
    for name, (fid, kid) in found.items():
        print(f"{name} against real, n = {count}, {half.shape[1]} features: FID {fid:.1f}, KID {kid:.5f}")
    # FID of so few samples is mostly bias, on both sides; KID has none
    assert found["real"][0] < found["noise"][0] and abs(found["real"][1]) < found["noise"][1] / 20
    print(f"{scripted.name} {scripted.digest}: real images are near, noise is far")


if __name__ == "__main__":
    main(*sys.argv[1:])
