"""Image figures do not depend on the order of files, which is often the order of their classes."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pytest
import torch
from PIL import Image
from torch import Tensor, nn

from di4c_cli.errors import UserError
from di4c_cli.evaluation.config import ScorerOptions
from di4c_cli.evaluation.file_evaluation import evaluate_file
from di4c_cli.evaluation.results import Figure
from di4c_cli.metric import subsets
from di4c_cli.metric.neighbours import precision_recall
from di4c_cli.metric.reference import FeatureReference

CLASSES = 3


class Colours(nn.Module):
    """The mean of each channel, and logits that tell classes apart."""

    def forward(self, x: Tensor) -> tuple[Tensor, Tensor]:
        features = x.mean(2).mean(2)
        return features, features / 4


@pytest.fixture(scope="module")
def network(tmp_path_factory: pytest.TempPathFactory) -> Path:
    path = tmp_path_factory.mktemp("network") / "colours.pt"
    torch.jit.script(Colours()).save(str(path))
    return path


def sorted_images(seed: int, per_class: int) -> np.ndarray:
    """Red, then green, then blue images of 2×2 pixels."""
    generator = np.random.default_rng(seed)
    level = np.repeat(np.eye(CLASSES) * 150, per_class, axis=0) + 30
    noise = generator.normal(scale=15, size=(len(level), 1, 1, 3))
    return np.broadcast_to(level[:, None, None] + noise, (len(level), 2, 2, 3)).clip(0, 255).astype(np.uint8)


def measure(root: Path, network: Path, samples: np.ndarray, reference: np.ndarray) -> dict[str, Figure]:
    root.mkdir()
    np.save(root / "samples.npy", samples)
    np.save(root / "real.npy", reference)
    options = ScorerOptions(features=network, reference=root / "real.npy")
    return evaluate_file(root / "samples.npy", options, None, root / "out").cells[0].figures


def reach(figure: Figure) -> float:
    """The ± of a table."""
    assert figure.low is not None and figure.high is not None
    return (figure.high - figure.low) / 2


def test_order_of_the_reference_changes_precision_and_recall_less_than_their_interval(
    network: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """600 images in order of class, of which 400 are compared: the first 400 would lack the last class."""
    monkeypatch.setattr(subsets, "SUBSET_ROWS", 400)
    real, samples = sorted_images(0, 200), sorted_images(1, 100)
    a = measure(tmp_path / "a", network, samples, real)
    b = measure(tmp_path / "b", network, samples, np.random.default_rng(2).permutation(real))
    for name in ("precision", "recall", "kid", "frechet", "is"):
        assert abs(a[name].value - b[name].value) < reach(a[name]), name
    assert a["precision"].note == "300 of 300 samples, 400 of 600 reference images"
    assert a["precision"].value > 0.8


def test_order_of_samples_changes_no_figure_beyond_its_interval(network: Path, tmp_path: Path) -> None:
    """Consecutive splits of samples in order of class would each hold one class, with an inception score of 1."""
    real, samples = sorted_images(0, 100), sorted_images(1, 60)
    a = measure(tmp_path / "a", network, samples, real)
    b = measure(tmp_path / "b", network, np.random.default_rng(3).permutation(samples), real)
    assert a["is"].value == pytest.approx(CLASSES, rel=0.1)
    for name in ("frechet", "is", "precision", "recall"):
        assert abs(a[name].value - b[name].value) <= reach(a[name]), name


def test_subsets_of_class_folders_are_averaged(network: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Five subsets as in published tables: their mean, and Student's interval over them."""
    monkeypatch.setattr(subsets, "SUBSET_ROWS", 60)
    real, samples = sorted_images(0, 100), sorted_images(1, 100)
    for name, classes in (("a", "xyz"), ("b", "zxy")):
        for number, image in enumerate(real):
            folder = tmp_path / name / "real" / classes[number // 100]
            folder.mkdir(parents=True, exist_ok=True)
            Image.fromarray(image).save(folder / f"{number}.png")
        np.save(tmp_path / name / "samples.npy", samples)
    found = {}
    for name in "ab":
        options = ScorerOptions(features=network, reference=tmp_path / name / "real")
        done = evaluate_file(tmp_path / name / "samples.npy", options, None, tmp_path / name / "out")
        found[name] = done.cells[0].figures
    a = found["a"]
    assert a["precision"].value == found["b"]["precision"].value and a["recall"].value == found["b"]["recall"].value
    assert (a["precision"].interval, a["precision"].over) == ("subsets", "5 subsets of samples and reference")
    drawn = np.random.default_rng(0).permutation(samples)[:, 0, 0].astype(np.float64)
    (cache,) = (tmp_path / "a" / "out").glob("reference-*.npz")
    kept = FeatureReference.load(cache).features
    pairs = [precision_recall(drawn[i : i + 60], kept[i : i + 60]) for i in range(0, 300, 60)]
    for place, name in enumerate(("precision", "recall")):
        values = [float(pair[place].mean()) for pair in pairs]
        assert a[name].value == pytest.approx(np.mean(values), abs=1e-9)
        assert a[name].se == pytest.approx(np.std(values, ddof=1) / 5**0.5, abs=1e-9)


def test_statistics_with_the_first_rows_are_rejected(network: Path, tmp_path: Path) -> None:
    """Files of earlier versions hold the first rows and say nothing about their choice."""
    measure(tmp_path / "a", network, sorted_images(1, 10), sorted_images(0, 20))
    (cache,) = (tmp_path / "a" / "out").glob("reference-*.npz")
    with np.load(cache) as file:
        arrays = {name: file[name] for name in file.files}
    arrays["features"] = arrays["features"][:5]
    arrays["provenance"] = np.array(str(arrays["provenance"]).replace("by hash", "first"))
    np.savez(tmp_path / "old.npz", **arrays)
    with pytest.raises(UserError, match="first 5 images"):
        FeatureReference.load(tmp_path / "old.npz")
