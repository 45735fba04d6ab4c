"""The engine: figures from parts are those of the whole, memory is constant, nothing is done twice."""

from __future__ import annotations

import os
import tracemalloc
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import numpy as np
import pytest
import torch
from PIL import Image

from di4c_cli.errors import UserError
from di4c_cli.evaluation import images, instruments, run, sampling
from di4c_cli.evaluation.pair import compare_pair
from di4c_cli.evaluation.parts import Parts, identity
from di4c_cli.evaluation.plan import CellPlan, Plan
from di4c_cli.evaluation.result import Results, load
from di4c_cli.evaluation.run import evaluate
from di4c_cli.evaluation.sampling import Entrant, labels_of
from di4c_cli.evaluation.world import WorldMetrics, quality
from di4c_cli.metric.features import ClassifierFeatures
from di4c_cli.metric.reference import Reference
from di4c_cli.model import Model


@pytest.fixture
def small_parts(monkeypatch: pytest.MonkeyPatch) -> None:
    """Parts of 50 samples."""
    monkeypatch.setattr(sampling, "SYMBOLS", 64 * 50)


class Counting:
    """A model that counts the samples it is asked for and may stop in the middle."""

    def __init__(self, model: Model, stop_after: int | None = None) -> None:
        self.inner, self.asked, self.left = model, 0, stop_after
        self.config, self.denoiser, self.name, self.decode = (
            model.config,
            model.denoiser,
            model.name,
            model.decode,
        )

    def sample(self, n: int, **options: Any) -> torch.Tensor:
        if self.left is not None and self.asked >= self.left:
            raise KeyboardInterrupt
        self.asked += n
        return self.inner.sample(n, **options)


def test_figures_from_parts_are_those_of_the_whole(teacher: Model, pupil: Model, small_parts: None) -> None:
    results = compare_pair(teacher, pupil, (2,), n=120, seed=3)
    for row, model in (("teacher", teacher), ("student", pupil)):
        whole = quality("tiny-digits", model, 2, 120, 3)
        cell = results.cell(row, "2 steps")
        assert cell is not None
        assert set(whole) - set(cell.figures) == {"leaning"}  # which `eval` does not show
        for name in set(whole) - {"leaning"}:
            value = whole[name]
            assert cell.figures[name].value == pytest.approx(value, rel=1e-5, abs=1e-7), name


def test_a_result_says_how_it_was_obtained(teacher: Model, pupil: Model, tmp_path: Path) -> None:
    results = compare_pair(teacher, pupil, (1,), n=60, seed=4)
    cell = results.cells[0]
    assert (cell.n, cell.seed, cell.labels) == (60, 4, "unconditional")
    assert cell.settings["sampler"] == "analytical" and cell.settings["dtype"] == "float64"
    assert results.instruments[0].digest and results.instruments[0].reference_n == 500
    assert results.packages["torch"] == torch.__version__ and results.device.startswith("cpu")
    assert "biased" in cell.figures["frechet"].note
    assert cell.figures["frechet"].interval == "splits" and cell.figures["precision"].interval == "bootstrap"
    assert [model.row for model in results.models] == ["teacher", "student"]
    results.save(tmp_path / "results.json")
    assert load(tmp_path) == results


def test_sampling_time_counts_once(
    teacher: Model, monkeypatch: pytest.MonkeyPatch, tmp_path: Path, small_parts: None
) -> None:
    """By a clock that only sampling moves: ten seconds a part, now or when the parts were made."""
    clock = [0.0]
    watch = SimpleNamespace(monotonic=lambda: clock[0])
    for module in (run, sampling):
        monkeypatch.setattr(module, "time", watch)

    class Slow(Counting):
        def sample(self, n: int, **options: Any) -> torch.Tensor:
            clock[0] += 10
            return super().sample(n, **options)

    assert _run(Slow(teacher), 100, tmp_path).cells[0].seconds == 20
    assert _run(Slow(teacher), 150, tmp_path).cells[0].seconds == 30
    assert clock[0] == 30


def test_a_reference_that_changes_inside_is_looked_at_again(tmp_path: Path) -> None:
    """Images replaced in place or added to a sub-folder leave the folder itself as it was."""
    folder, out = tmp_path / "real", tmp_path / "out"
    (folder / "class").mkdir(parents=True)
    pixels = np.random.default_rng(0).integers(0, 256, (14, 8, 8), dtype=np.uint8)
    network = instruments.world_features("tiny-digits")

    def mean() -> np.ndarray:
        tools = instruments.Tools(reference=folder)
        found = instruments.reference(tools, network, "tiny-digits", 12, out, (8, 8))
        return np.asarray(found.moments.mean)

    def put(name: str, image: np.ndarray) -> None:
        Image.fromarray(image).save(folder / name)
        os.utime(folder, (1e9, 1e9))

    for number in range(12):
        put(f"class/{number}.png", pixels[number])
    first = mean()
    assert np.array_equal(mean(), first)
    put("class/0.png", pixels[12])
    second = mean()
    assert not np.allclose(second, first)
    put("class/new.png", pixels[13])
    assert not np.allclose(mean(), second)


def _run(model: Any, n: int, work: Path) -> Results:
    plan = Plan("test", "test", (CellPlan("teacher", "2 steps", 2),), n)
    return evaluate(plan, [Entrant("teacher", model)], [instruments.world_scorer("tiny-digits")], n, 0, work)


def test_an_interrupted_evaluation_goes_on_where_it_was(
    teacher: Model, tmp_path: Path, small_parts: None
) -> None:
    stopped = Counting(teacher, stop_after=100)
    with pytest.raises(KeyboardInterrupt):
        _run(stopped, 160, tmp_path)
    assert stopped.asked == 100
    again = Counting(teacher)
    resumed = _run(again, 160, tmp_path)
    assert again.asked == 60
    straight = _run(teacher, 160, tmp_path / "other")
    assert resumed.cells[0].figures == straight.cells[0].figures
    finished = Counting(teacher)
    _run(finished, 160, tmp_path)
    assert finished.asked == 0


def test_another_model_or_seed_never_takes_old_parts(teacher: Model, pupil: Model, tmp_path: Path) -> None:
    _run(teacher, 60, tmp_path)
    plan = Plan("test", "test", (CellPlan("teacher", "2 steps", 2),), 60)
    for model, seed in ((pupil, 0), (teacher, 1)):
        counting = Counting(model)
        entrants = [Entrant("teacher", counting)]  # type: ignore[arg-type]
        evaluate(plan, entrants, [instruments.world_scorer("tiny-digits")], 60, seed, tmp_path)
        assert counting.asked == 60


def test_a_part_cut_short_is_computed_again(tmp_path: Path) -> None:
    parts = Parts(tmp_path, 30, 10)

    def compute(first: int, count: int) -> dict[str, np.ndarray]:
        return {"value": np.arange(first, first + count)}

    assert parts.fill(compute) == 30
    victim = sorted(tmp_path.iterdir())[1]
    victim.write_bytes(victim.read_bytes()[:40])
    assert parts.fill(compute) == 10
    np.testing.assert_array_equal(parts.column("value"), np.arange(30))


def _peak(n: int, folder: Path, scorer: images.ImageScorer) -> int:
    def compute(first: int, count: int) -> dict[str, np.ndarray]:
        generator = np.random.default_rng(first)
        width = len(scorer.reference.moments.mean)
        law = generator.dirichlet(np.ones(10), size=count)
        return {"features": generator.normal(size=(count, width)).astype(np.float32), "probabilities": law}

    parts = Parts(folder, n, 500)
    tracemalloc.start()
    parts.fill(compute)
    figures = scorer.summarise(parts)
    peak = tracemalloc.get_traced_memory()[1]
    tracemalloc.stop()
    assert figures["frechet"].low is not None
    return peak


def test_fifty_thousand_samples_take_no_more_memory_than_five(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The kept rows are the only thing that could grow; they are capped (here at 1000)."""
    monkeypatch.setattr(images, "KEPT", 1000)
    scorer = instruments.world_scorer("tiny-digits")
    assert isinstance(scorer, images.ImageScorer)
    small, large = _peak(5_000, tmp_path / "a", scorer), _peak(50_000, tmp_path / "b", scorer)
    assert large < 1.1 * small, (small, large)


def test_labels_are_every_class_equally_often(teacher: Model) -> None:
    assert labels_of(teacher, "uniform", 8, 4) == [8, 9, 0, 1]
    assert labels_of(teacher, "none", 0, 2) is None
    assert labels_of(teacher, "3", 0, 2) == [3, 3]


def test_images_of_another_size_and_foreign_statistics_are_refused() -> None:
    metrics = WorldMetrics("tiny-digits")
    network = ClassifierFeatures(metrics.classifier, "digits-classifier")
    with pytest.raises(UserError, match="8×8, not 28×28"):
        network.embed(np.zeros((3, 28, 28), np.uint8))
    foreign = Reference("other", "0" * 16, "x", metrics.moments, metrics.reference)
    with pytest.raises(UserError, match="another feature network"):
        images.ImageScorer(network, foreign)


def test_identity_depends_on_every_fact() -> None:
    assert identity(a=1, b=2) == identity(b=2, a=1)
    assert identity(a=1, b=2) != identity(a=1, b=3)
