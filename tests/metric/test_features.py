"""Feature networks and references: scripts, torchmetrics as a second opinion, caching with provenance."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pytest
import torch
from torch import Tensor, nn

from di4c_cli.errors import UserError
from di4c_cli.metric.feature_scores import ClassStatistics, FeatureMoments, frechet, kernel_distance
from di4c_cli.metric.features import (
    FeatureNetwork,
    ScriptedFeatures,
    network_input,
    stretched,
    tensors_digest,
    tf_resize,
)
from di4c_cli.metric.reference import FeatureReference, cached_reference, make_reference, require_size
from tests.helpers.scan_network import Scan


class Only(nn.Module):
    """One of the two answers, for torchmetrics."""

    def __init__(self, which: int) -> None:
        super().__init__()
        self.scan, self.which, self.num_features = Scan(), which, 6

    def forward(self, x: Tensor) -> Tensor:
        return self.scan(x)[self.which]


@pytest.fixture(scope="module")
def script(tmp_path_factory: pytest.TempPathFactory) -> Path:
    path = tmp_path_factory.mktemp("script") / "scan.pt"
    torch.jit.script(Scan()).save(str(path))
    return path


def _images(seed: int, n: int = 60, size: int = 6) -> np.ndarray:
    return np.random.default_rng(seed).integers(0, 256, size=(n, size, size, 3)).astype(np.uint8)


@pytest.mark.slow
def test_feature_scores_agree_with_torchmetrics(script: Path) -> None:
    from torchmetrics.image.fid import FrechetInceptionDistance
    from torchmetrics.image.inception import InceptionScore
    from torchmetrics.image.kid import KernelInceptionDistance

    real, fake = _images(0), _images(1) // 2
    network = ScriptedFeatures(script)
    (a, _), (b, law) = network.embed(real), network.embed(fake)
    pixels = [torch.from_numpy(images).permute(0, 3, 1, 2) for images in (real, fake)]
    fid = FrechetInceptionDistance(feature=Only(0), input_img_size=(3, 6, 6))
    kid = KernelInceptionDistance(feature=Only(0), subsets=1, subset_size=60)
    for metric in (fid, kid):
        metric.update(pixels[0], real=True)
        metric.update(pixels[1], real=False)
    assert frechet(FeatureMoments.of(b), FeatureMoments.of(a)) == pytest.approx(float(fid.compute()), rel=1e-4)
    assert kernel_distance(b, a) == pytest.approx(float(kid.compute()[0]), rel=1e-4)
    score = InceptionScore(feature=Only(1), splits=1)
    score.update(pixels[1])
    assert law is not None
    assert ClassStatistics.of(law).score == pytest.approx(float(score.compute()[0]), rel=1e-4)


def test_scripted_features_repeat_grey_images_in_any_chunk(script: Path) -> None:
    grey = _images(2)[..., 0]
    colour = np.repeat(grey[..., None], 3, axis=-1)
    np.testing.assert_array_equal(ScriptedFeatures(script).embed(grey)[0], ScriptedFeatures(script).embed(colour)[0])
    small, _ = ScriptedFeatures(script, chunk=7).embed(colour)
    np.testing.assert_allclose(small, ScriptedFeatures(script, chunk=60).embed(colour)[0], atol=1e-6)


def test_stretched_uses_the_whole_range_of_every_image() -> None:
    images = torch.tensor([[10.0, 20.0, 30.0, 61.0], [0.0, 255.0, 128.0, 7.0], [9.0, 9.0, 9.0, 9.0]]).view(3, 1, 2, 2)
    expected = [[0.0, 50.0, 100.0, 255.0], [0.0, 255.0, 128.0, 7.0], [0.0] * 4]
    assert stretched(images).flatten(1).tolist() == expected


def test_scripted_features_stretch_samples_and_reference_alike(script: Path) -> None:
    pale = (_images(2) // 2 + 40).astype(np.uint8)
    strong = stretched(torch.from_numpy(pale).float().permute(0, 3, 1, 2)).permute(0, 2, 3, 1).numpy().astype(np.uint8)
    ours, _ = ScriptedFeatures(script, feature_input="tf299-stretched").embed(pale)
    expected, _ = ScriptedFeatures(script, feature_input="tf299").embed(strong)
    np.testing.assert_array_equal(ours, expected)


def test_network_input_torch299_has_half_pixels() -> None:
    """A ramp over two pixels: the first and last quarter of the width are flat, unlike TensorFlow's resize."""
    ramp = torch.tensor([0.0, 255.0]).view(1, 1, 1, 2)
    row = network_input(ramp, "torch299")[0, 0, 0]
    place = ((torch.arange(299) + 0.5) * 2 / 299 - 0.5).clamp(0, 1)
    torch.testing.assert_close(row, 2 * place - 1, rtol=0, atol=1e-5)
    assert not torch.allclose(row, network_input(ramp, "tf299")[0, 0, 0], atol=0.1)


def test_scripted_features_name_networks_that_cannot_be_used(script: Path, tmp_path: Path) -> None:
    with pytest.raises(UserError, match="no feature network"):
        ScriptedFeatures(tmp_path / "nothing.pt")
    (tmp_path / "text.pt").write_text("hello")
    with pytest.raises(UserError, match="not a TorchScript file"):
        ScriptedFeatures(tmp_path / "text.pt")
    with pytest.raises(UserError, match="bytes, tf299"):
        ScriptedFeatures(script, feature_input="words")
    with pytest.raises(UserError, match="does not take images of 1×1"):
        ScriptedFeatures(script).embed(_images(0, 2, 1))


@pytest.mark.parametrize("size", [8, 32, 400])
def test_tf_resize_is_a_sampling_grid_without_half_pixels(size: int) -> None:
    x = torch.rand(2, 3, size, size, generator=torch.Generator().manual_seed(0))
    theta = torch.eye(2, 3)
    theta[:, 2] += torch.tensor([1 / size - 1 / 299, 1 / size - 1 / 299])
    grid = nn.functional.affine_grid(theta.expand(2, 2, 3), [2, 3, 299, 299], align_corners=False)
    expected = nn.functional.grid_sample(x, grid, padding_mode="border", align_corners=False)
    torch.testing.assert_close(tf_resize(x), expected, atol=2e-4, rtol=0)


class Mean(FeatureNetwork):
    """Two numbers an image, and a count of the images seen."""

    chunk = 16

    def __init__(self, digest: str = "mean") -> None:
        self.name, self.digest, self.seen = "mean", digest, 0

    def run(self, images: torch.Tensor) -> tuple[torch.Tensor, None]:
        self.seen += len(images)
        flat = images.flatten(1)
        return torch.stack([flat.mean(1), flat.std(1, unbiased=False)], 1), None


def test_reference_statistics_are_cached_with_provenance(tmp_path: Path) -> None:
    network, path = Mean(), tmp_path / "reference.npz"
    batches = [_images(0, 30), _images(1, 12)]
    made = cached_reference(path, "real", network, batches, "folder 1")
    assert (made.count, made.network, made.source, network.seen) == (42, "mean", "folder 1", 42)
    again = cached_reference(path, "real", network, batches, "folder 1")
    assert network.seen == 42 and again.digest == made.digest
    assert frechet(again.moments, made.moments) == pytest.approx(0, abs=1e-9)
    cached_reference(path, "real", network, batches, "folder 2")
    assert network.seen == 84, "other images are looked at"
    path.write_bytes(path.read_bytes()[:50])
    cached_reference(path, "real", network, batches, "folder 2")
    assert network.seen == 126, "a damaged cache is made again"


def test_references_reject_other_networks_and_sizes(tmp_path: Path) -> None:
    reference = make_reference("real", Mean(), [_images(0, 30)])
    require_size("real", reference.size, (6, 6))
    reference.save(tmp_path / "stored.npz")
    stored = FeatureReference.load(tmp_path / "stored.npz")
    with pytest.raises(UserError, match="'real' are 6×6, the samples 8×6"):
        require_size(stored.name, stored.size, (8, 6, 3))
    with pytest.raises(UserError, match="another feature network"):
        reference.check_network(Mean("other"))
    with pytest.raises(UserError, match="holds no images"):
        make_reference("none", Mean(), [])
    (tmp_path / "bad.npz").write_bytes(b"PK")
    with pytest.raises(UserError, match=r"not a readable \.npz file"):
        FeatureReference.load(tmp_path / "bad.npz")


def test_tensors_digest_depends_on_every_bit() -> None:
    tensors = {"a": torch.zeros(3), "b": torch.ones(2, 2)}
    first = tensors_digest(tensors)
    assert first == tensors_digest(dict(reversed(tensors.items())))
    tensors["a"][1] = 1e-30
    assert tensors_digest(tensors) != first
