"""N-gram judge, entropy, distinct n-grams, Self-BLEU and MAUVE against direct computations."""

from __future__ import annotations

from collections import Counter
from pathlib import Path

import numpy as np
import pytest
import torch
from nltk.translate.bleu_score import SmoothingFunction, sentence_bleu

from di4c_cli.errors import UserError
from di4c_cli.evaluation.parts import ScoreParts
from di4c_cli.evaluation.scorers.text import NgramScorer
from di4c_cli.metric.diversity import distinct, self_bleu, unigram_entropy
from di4c_cli.metric.mauve import frontier_area, kmeans, mauve, mauve_runs
from di4c_cli.metric.ngram import CharacterModel
from di4c_cli.tasks.registry import TASKS
from di4c_cli.tasks.text import TextTask

LINES = ["the cat sat on the mat.", "a cat and a hat sat.", "the end of the day"]


def _plain_probability(lines: list[str], order: int, history: str, character: str) -> float:
    """Witten–Bell by dictionaries, straight from its definition."""
    alphabet = sorted(set("".join(lines)) | {" "})
    p = 1.0 / (len(alphabet) + 1)
    for length in range(order):
        counts: Counter[tuple[str, str]] = Counter()
        for line in lines:
            padded = " " * (order + 1) + line
            for i in range(order + 1, len(padded)):
                counts[padded[i - length : i], padded[i]] += 1
        context = (" " * (order + 1) + history)[len(" " * (order + 1) + history) - length :]
        after = {c: n for (h, c), n in counts.items() if h == context}
        if after:
            total, kinds = sum(after.values()), len(after)
            p = (after.get(character, 0) + kinds * p) / (total + kinds)
    return p


def test_character_model_is_witten_bell() -> None:
    model = CharacterModel(LINES, order=3)
    text = "the hat sat zz"
    expected = [np.log2(_plain_probability(LINES, 3, text[:i], text[i])) for i in range(len(text))]
    np.testing.assert_allclose(model.log2_probs(text), expected, rtol=1e-9)


@pytest.mark.parametrize("history", ["", "the c", "qqq"])
def test_character_model_sums_to_one(history: str) -> None:
    model = CharacterModel(LINES, order=4)
    unknown = "\x00"
    total = sum(2.0 ** model.log2_probs(history + c)[-1] for c in [*model.index, unknown])
    assert total == pytest.approx(1.0, abs=1e-12)


def test_character_model_prefers_real_text_to_shuffled_letters() -> None:
    model = CharacterModel(LINES * 3)
    real = "the cat and the hat"
    shuffled = "".join(np.random.default_rng(0).permutation(list(real)))
    assert model.bits_per_character([real])[0] < model.bits_per_character([shuffled])[0]


def test_unigram_entropy_of_each_sample() -> None:
    ids = np.array([[1, 1, 1, 1], [1, 2, 3, 4], [5, 5, 9, 9]])
    np.testing.assert_allclose(unigram_entropy(ids), [0, np.log(4), np.log(2)])


def test_distinct_counts_new_bigrams_in_groups_of_equal_size() -> None:
    ids = np.array([[1, 2, 3], [1, 2, 3], [4, 5, 6], [6, 5, 4], [7, 7, 7]])
    np.testing.assert_allclose(distinct(ids, 2, group=2), [2 / 4, 4 / 4])
    np.testing.assert_allclose(distinct(ids[:1], 2, group=50), [1.0])
    with pytest.raises(UserError, match="no 4-grams"):
        distinct(ids, 4)


def test_self_bleu_is_nltks_sentence_by_sentence() -> None:
    generator = np.random.default_rng(1)
    groups = generator.integers(0, 6, size=(3, 5, 20)).tolist()
    smoothing = SmoothingFunction().method1
    expected = []
    for group in groups:
        scores = []
        for i in range(5):
            others = group[:i] + group[i + 1 :]
            scores.append(sentence_bleu(others, group[i], (0.25, 0.25, 0.25, 0.25), smoothing_function=smoothing))
        expected.append(100 * sum(scores) / 5)
    np.testing.assert_allclose(self_bleu(groups), expected, rtol=1e-12)
    assert self_bleu([[list(range(9))] * 3])[0] == pytest.approx(100)
    with pytest.raises(UserError, match="at least 2 samples in each group"):
        self_bleu([[[1, 2, 3]]])


def test_mauve_of_histograms_is_the_area_under_its_curve() -> None:
    """Against the same integral on a grid a hundred times finer, by its definition."""
    p, q = np.array([0.7, 0.2, 0.1]), np.array([0.2, 0.3, 0.5])
    w = np.linspace(1e-9, 1 - 1e-9, 20_000)[:, None]
    r = w * p + (1 - w) * q
    x, y = np.exp(-5 * (q * np.log(q / r)).sum(1)), np.exp(-5 * (p * np.log(p / r)).sum(1))
    x, y = np.append(x, [0, 1]), np.append(y, [1, 0])
    order = np.lexsort((-y, x))
    exact = float(((x[order][1:] - x[order][:-1]) * (y[order][1:] + y[order][:-1]) / 2).sum())
    assert frontier_area(p, q) == pytest.approx(exact, abs=0.01)
    assert frontier_area(p, p) == pytest.approx(1.0)
    assert frontier_area(np.array([1.0, 0]), np.array([0, 1.0])) < 0.05


def test_mauve_on_given_features_orders_close_and_far() -> None:
    generator = np.random.default_rng(2)
    real, close, far = (generator.normal(shift, 1, size=(200, 8)) for shift in (0.0, 0.0, 2.0))
    near, away = mauve_runs(close, real), mauve_runs(far, real)
    assert near.shape == (5,) and near.mean() > 0.8 > 0.2 > away.mean()
    assert mauve(real, real.copy()) == pytest.approx(1.0)


def test_kmeans_finds_separated_groups() -> None:
    generator = np.random.default_rng(3)
    points = np.concatenate([generator.normal(10 * k, 0.1, size=(20, 2)) for k in range(4)])
    owner = kmeans(points, 4, seed=0)
    assert len({tuple(np.unique(owner[20 * k : 20 * k + 20])) for k in range(4)}) == 4
    assert all(len(np.unique(owner[20 * k : 20 * k + 20])) == 1 for k in range(4))


def test_vocabulary_counts_the_symbols_of_all_parts_once(tmp_path: Path) -> None:
    task = TASKS["words"]
    assert isinstance(task, TextTask)
    scorer, parts = NgramScorer(task, None), ScoreParts(tmp_path, 4, 2)
    x = torch.tensor([[1, 2], [2, 3], [3, 4], [1, 9]]).repeat(1, 8)
    parts.fill(lambda first, count: scorer.score(x[first : first + count], task.codec.decode(x[first : first + count])))
    assert scorer.summarise(parts)["vocabulary"].value == 5
