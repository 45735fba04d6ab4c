"""The gradient moment: gradients by autograd, an unbiased distance, and controls that perplexity does not notice."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pytest
import torch
from torch.nn.functional import cross_entropy

from di4c_cli.errors import UserError
from di4c_cli.evaluation.config import ScorerOptions
from di4c_cli.evaluation.file_evaluation import evaluate_file
from di4c_cli.metric.diversity import distinct_words
from di4c_cli.metric.gradient_moment import gradient_moment, squared_distance
from di4c_cli.metric.judge import load_judge


def test_gain_gradients_are_those_of_autograd(judge_folder: Path) -> None:
    judge = load_judge(str(judge_folder))
    texts = ["some real text", "Call me Ishmael.", ""]
    rows = judge.gain_gradients(texts, 100)
    for text, row in zip(texts[:2], rows, strict=False):
        ids = torch.tensor([[judge.start or 0, *judge.encode(text)]])
        hidden = judge.network(input_ids=ids, output_hidden_states=True).hidden_states[-1].detach()
        gain = torch.ones(hidden.shape[-1], requires_grad=True)
        logits = judge.network.get_output_embeddings()(hidden * gain)[0, :-1]
        (-cross_entropy(logits, ids[0, 1:])).backward()
        assert gain.grad is not None
        torch.testing.assert_close(row, gain.grad, rtol=1e-4, atol=1e-6)
    assert not rows[2].any()


def test_distance_is_unbiased() -> None:
    """Mean over 4000 draws of two sets of 5; its standard error is about 0.005."""
    generator = np.random.default_rng(0)
    for shift in (0.0, 0.5):
        draws = [
            squared_distance(generator.normal(size=(5, 3)), shift + generator.normal(size=(5, 3))) for _ in range(4000)
        ]
        assert abs(np.mean(draws) - 3 * shift**2) < 4 * np.std(draws) / 4000**0.5
    rows = generator.normal(size=(100, 3))
    interval = gradient_moment(rows, rows[::-1])
    assert interval.low is not None and interval.low < interval.value


def test_gradient_moment_of_one_text_is_rejected() -> None:
    with pytest.raises(UserError, match="at least 2 texts"):
        gradient_moment(np.ones((1, 3)), np.ones((2, 3)))


def test_distinct_words_counts_different_pairs() -> None:
    np.testing.assert_allclose(distinct_words(["a b c", "a b d"]), [3 / 4])
    np.testing.assert_allclose(distinct_words(["", "a"]), [0])
    assert len(distinct_words(["a b"] * 120)) == 2


@pytest.mark.slow
def test_repeated_text_is_farther_than_other_real_texts(judge_folder: Path, tmp_path: Path) -> None:
    words = np.random.default_rng(0).choice(["whale", "sea", "ship", "captain", "the", "a", "of", "."], size=(80, 9))
    lines = [" ".join(row) for row in words]
    real, other, repeated = (tmp_path / f"{name}.txt" for name in ("real", "other", "repeated"))
    real.write_text("\n".join(lines[:40]))
    other.write_text("\n".join(lines[40:]))
    repeated.write_text("\n".join(lines[:1] * 40))
    options = ScorerOptions(judge=str(judge_folder), reference=real)
    near, far = (evaluate_file(path, options, None, tmp_path / "out").cells[0].figures for path in (other, repeated))
    assert {"bits_per_byte", "entropy", "distinct", "mauve", "gradient_moment"} <= set(near)
    assert far["gradient_moment"].value > near["gradient_moment"].value
    assert far["distinct"].value < near["distinct"].value
