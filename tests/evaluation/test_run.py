"""The evaluation engine: figures from parts equal those of all samples, memory is constant, work is resumed."""

from __future__ import annotations

import os
import tracemalloc
import zipfile
from dataclasses import replace
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import numpy as np
import pytest
import torch
from PIL import Image

from di4c_cli.errors import Failure, UserError
from di4c_cli.evaluation import measurement, run, sampling
from di4c_cli.evaluation.config import ScorerOptions
from di4c_cli.evaluation.models import EvaluatedModel
from di4c_cli.evaluation.parts import ScoreParts, identity
from di4c_cli.evaluation.protocol import CellSpec, EvaluationProtocol, steps_protocol
from di4c_cli.evaluation.results import Results, load
from di4c_cli.evaluation.run import Evaluation
from di4c_cli.evaluation.sampling import labels_of
from di4c_cli.evaluation.scorers import ScorerContext, features, make_scorers
from di4c_cli.metric import subsets
from di4c_cli.metric.feature_scores import ClassStatistics, FeatureMoments, frechet, kernel_distance
from di4c_cli.metric.neighbours import nearer_to_training, precision_recall
from di4c_cli.metric.reference import FeatureReference
from di4c_cli.model import Model
from di4c_cli.tasks.base import ImageTask
from di4c_cli.tasks.registry import TASKS
from di4c_cli.tasks.text import TextTask

DIGITS = TASKS["digits"]
assert isinstance(DIGITS, ImageTask)


@pytest.fixture
def small_parts(monkeypatch: pytest.MonkeyPatch) -> None:
    """Parts of 50 samples."""
    monkeypatch.setattr(sampling, "SYMBOLS_PER_PART", 64 * 50)


class Counting:
    """A model that counts the samples it is asked for and may stop in the middle."""

    def __init__(self, model: Model, stop_after: int | None = None) -> None:
        self.inner, self.asked, self.left = model, 0, stop_after
        self.config, self.denoiser, self.name, self.decode = (model.config, model.denoiser, model.name, model.decode)

    def sample(self, n: int, **options: Any) -> torch.Tensor:
        if self.left is not None and self.asked >= self.left:
            raise KeyboardInterrupt
        self.asked += n
        return self.inner.sample(n, **options)


def compare_pair(
    teacher: Model, pupil: Model, steps: tuple[int, ...], n: int, out: Path, seed: int = 0, repeats: int = 1
) -> Results:
    """Teacher and student against steps, measured by the digits' own scorers."""
    plain = steps_protocol("digits", "test", ("teacher", "student"), steps, n)
    protocol = replace(plain, labels="none", repeats=repeats)
    models = [EvaluatedModel("teacher", teacher), EvaluatedModel("student", pupil)]
    scorers = make_scorers(["features", "memorisation"], ScorerContext(teacher, DIGITS, n, Path()))
    return Evaluation(protocol, models, scorers, n, seed, out, DIGITS).run()


def test_evaluation_gives_the_figures_of_all_samples_at_once(
    teacher: Model, pupil: Model, tmp_path: Path, small_parts: None
) -> None:
    results = compare_pair(teacher, pupil, (2,), 120, tmp_path, seed=3)
    data, decode = DIGITS.data, DIGITS.codec.decode
    reference, _ = features.task_features(DIGITS).embed(decode(data.held_out))
    for row, model in (("teacher", teacher), ("student", pupil)):
        x = model.sample(120, steps=2, seed=3)
        rows, probabilities = features.task_features(DIGITS).embed(decode(x))
        inside, reached = precision_recall(rows, reference)
        vectors = (np.asarray(decode(y)).reshape(len(y), -1) for y in (x, data.train[::2], data.held_out))
        whole = {
            "frechet": frechet(FeatureMoments.of(rows), FeatureMoments.of(reference)),
            "kid": kernel_distance(rows, reference),
            "is": np.mean([ClassStatistics.of(p).score for p in np.array_split(probabilities, 10)]),
            "precision": inside.mean(),
            "recall": reached.mean(),
            "nearer_to_training": nearer_to_training(*vectors).mean(),
        }
        cell = results.cell(row, "2 steps")
        assert cell is not None and set(whole) == set(cell.figures)
        for name, value in whole.items():
            assert cell.figures[name].value == pytest.approx(value, rel=1e-5, abs=1e-7), name


@pytest.mark.slow
def test_evaluation_repeats_every_cell_with_further_seeds(teacher: Model, pupil: Model, tmp_path: Path) -> None:
    """Each repeat is the evaluation with its seed; the figure is their mean with Student's interval."""
    results = compare_pair(teacher, pupil, (1, 2), 40, tmp_path, seed=4, repeats=3)
    alone = [compare_pair(teacher, pupil, (1, 2), 40, tmp_path / f"{seed}", seed=seed) for seed in (4, 5, 6)]
    for cell in results.cells:
        figure = cell.figures["frechet"]
        found = [other.cell(*cell.key) for other in alone]
        assert figure.repeats == [one.figures["frechet"].value for one in found if one is not None]
        assert figure.value == pytest.approx(np.mean(figure.repeats)) and figure.interval == "repeats"
        assert figure.se == pytest.approx(np.std(figure.repeats, ddof=1) / np.sqrt(3))
        assert figure.low == pytest.approx(figure.value - 4.303 * figure.se)
        assert (cell.seed, cell.repeats, cell.n) == (4, 3, 40)
    assert [entry.steps for entry in results.steps_saved] == [1, 2] and not alone[0].steps_saved


def test_memorisation_scorer_of_text_compares_words() -> None:
    task = TASKS["words"]
    assert isinstance(task, TextTask)
    (scorer,) = make_scorers(["memorisation"], ScorerContext(None, task, 8, Path()))
    stride = len(task.data.train) // 500
    copies = task.data.train[:: stride * 4][:8]
    assert scorer.score(copies, task.codec.decode(copies))["nearer"].mean() == 1.0
    with pytest.raises(UserError, match="toy tasks only"):
        make_scorers(["memorisation"], ScorerContext(None, None, 8, Path()))


def test_results_say_how_they_were_obtained(teacher: Model, pupil: Model, tmp_path: Path) -> None:
    results = compare_pair(teacher, pupil, (1,), 60, tmp_path, seed=4)
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


def test_evaluation_counts_sampling_time_once(
    teacher: Model, monkeypatch: pytest.MonkeyPatch, tmp_path: Path, small_parts: None
) -> None:
    """By a clock that only sampling moves: ten seconds a part, now or when the parts were made."""
    clock = [0.0]
    watch = SimpleNamespace(monotonic=lambda: clock[0])
    for module in (measurement, run, sampling):
        monkeypatch.setattr(module, "time", watch)

    class Slow(Counting):
        def sample(self, n: int, **options: Any) -> torch.Tensor:
            clock[0] += 10
            return super().sample(n, **options)

    assert _run(Slow(teacher), 100, tmp_path).cells[0].seconds == 20
    assert _run(Slow(teacher), 150, tmp_path).cells[0].seconds == 30
    assert clock[0] == 30


def test_feature_reference_is_recomputed_when_its_images_change(tmp_path: Path) -> None:
    """Images replaced in place or added to a sub-folder leave the folder itself as it was."""
    folder, out = tmp_path / "real", tmp_path / "out"
    (folder / "class").mkdir(parents=True)
    pixels = np.random.default_rng(0).integers(0, 256, (14, 8, 8), dtype=np.uint8)
    network = features.task_features(DIGITS)

    def mean() -> np.ndarray:
        options = ScorerOptions(reference=folder)
        context = ScorerContext(None, DIGITS, 12, out, options, image_size=(8, 8))
        found = features.feature_reference(context, network)
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
    protocol = EvaluationProtocol("test", "test", (CellSpec("teacher", "2 steps", 2),), n)
    return Evaluation(
        protocol, [EvaluatedModel("teacher", model)], [features.task_image_scorer(DIGITS)], n, 0, work
    ).run()


def test_evaluation_resumes_where_it_was_stopped(teacher: Model, tmp_path: Path, small_parts: None) -> None:
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


def test_evaluation_never_uses_parts_of_another_model_or_seed(teacher: Model, pupil: Model, tmp_path: Path) -> None:
    _run(teacher, 60, tmp_path)
    protocol = EvaluationProtocol("test", "test", (CellSpec("teacher", "2 steps", 2),), 60)
    for model, seed in ((pupil, 0), (teacher, 1)):
        counting = Counting(model)
        models = [EvaluatedModel("teacher", counting)]  # type: ignore[arg-type]
        Evaluation(protocol, models, [features.task_image_scorer(DIGITS)], 60, seed, tmp_path).run()
        assert counting.asked == 60


def test_score_parts_recompute_a_truncated_file(tmp_path: Path) -> None:
    parts = ScoreParts(tmp_path, 30, 10)

    computed = []

    def compute(first: int, count: int) -> dict[str, np.ndarray]:
        computed.append((first, count))
        return {"value": np.arange(first, first + count)}

    parts.fill(compute)
    assert computed == [(0, 10), (10, 10), (20, 10)]
    victim = sorted(tmp_path.iterdir())[1]
    victim.write_bytes(victim.read_bytes()[:40])
    parts.fill(compute)
    assert computed[3:] == [(10, 10)]
    np.testing.assert_array_equal(parts.column("value"), np.arange(30))


def _peak(n: int, folder: Path, scorer: features.ImageScorer) -> int:
    def compute(first: int, count: int) -> dict[str, np.ndarray]:
        generator = np.random.default_rng(first)
        width = len(scorer.reference.moments.mean)
        law = generator.dirichlet(np.ones(10), size=count)
        return {"features": generator.normal(size=(count, width)).astype(np.float32), "probabilities": law}

    parts = ScoreParts(folder, n, 500)
    tracemalloc.start()
    parts.fill(compute)
    figures = scorer.summarise(parts)
    peak = tracemalloc.get_traced_memory()[1]
    tracemalloc.stop()
    assert figures["frechet"].low is not None
    return peak


@pytest.mark.slow
def test_image_scorer_uses_constant_memory(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Subsets of rows are the only thing that could grow; their size is fixed (here 1000)."""
    monkeypatch.setattr(subsets, "SUBSET_ROWS", 1000)
    scorer = features.task_image_scorer(DIGITS)
    assert isinstance(scorer, features.ImageScorer)
    small, large = _peak(5_000, tmp_path / "a", scorer), _peak(50_000, tmp_path / "b", scorer)
    assert large < 1.1 * small, (small, large)


def test_labels_of_gives_every_class_equally_often(teacher: Model) -> None:
    assert labels_of(teacher, "uniform", 8, 4) == [8, 9, 0, 1]
    assert labels_of(teacher, "none", 0, 2) is None
    assert labels_of(teacher, "3", 0, 2) == [3, 3]


def test_image_scorer_rejects_images_of_another_size_and_foreign_statistics() -> None:
    network = features.task_features(DIGITS)
    with pytest.raises(UserError, match="8×8, not 28×28"):
        network.embed(np.zeros((3, 28, 28), np.uint8))
    own = features.task_image_scorer(DIGITS).reference
    foreign = FeatureReference("other", "0" * 16, "x", own.moments, own.features)
    with pytest.raises(UserError, match="another feature network"):
        features.ImageScorer(network, foreign)


def test_identity_depends_on_every_fact() -> None:
    assert identity(a=1, b=2) == identity(b=2, a=1)
    assert identity(a=1, b=2) != identity(a=1, b=3)


def test_parts_that_others_changed_are_computed_again_or_named(tmp_path: Path) -> None:
    parts = ScoreParts(tmp_path, 4, 4)
    parts.fill(lambda first, count: {"loss": np.zeros(count)})
    (path,) = tmp_path.glob("*.npz")
    with zipfile.ZipFile(path, "w") as archive:  # a whole archive of a damaged array
        archive.writestr("loss.npy", b"\x93NUMPY\x01\x00")
    parts.fill(lambda first, count: {"loss": np.ones(count)})
    assert parts.column("loss").tolist() == [1.0] * 4
    with pytest.raises(Failure, match="has no array 'other'"):
        parts.column("other")
