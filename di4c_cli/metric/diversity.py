"""Diversity of texts: unigram entropy, distinct n-grams, Self-BLEU. A repetitive model has a low perplexity."""

from __future__ import annotations

from collections.abc import Sequence
from itertools import pairwise

import numpy as np

from di4c_cli.errors import UserError

DISTINCT_GROUP = 50
"""Samples in each group of `distinct`; fixed, because the share of new n-grams falls with their number."""


def unigram_entropy(ids: np.ndarray) -> np.ndarray:
    """Entropy in nats of each sample's own token histogram, `(n, D)` -> `(n,)`."""
    out = []
    for tokens in ids:
        p = np.unique(tokens, return_counts=True)[1] / len(tokens)
        out.append(-(p * np.log(p)).sum())
    return np.array(out)


def distinct(ids: np.ndarray, n: int = 2, group: int = DISTINCT_GROUP) -> np.ndarray:
    """Different n-grams over all n-grams in each consecutive group of samples, one value per full group.

    Fewer samples than a group make one group of their own.
    """
    ids = np.asarray(ids)
    if ids.shape[1] < n:
        raise UserError(f"Samples of {ids.shape[1]} tokens have no {n}-grams.", "Use longer samples.")
    size = min(group, len(ids))
    out = []
    for start in range(0, len(ids) - size + 1, size):
        grams = np.lib.stride_tricks.sliding_window_view(ids[start : start + size], n, axis=1).reshape(-1, n)
        out.append(len(np.unique(grams, axis=0)) / len(grams))
    return np.array(out)


def distinct_words(texts: list[str], group: int = DISTINCT_GROUP) -> np.ndarray:
    """`distinct` of the bigrams of words, which do not depend on a tokenizer."""
    size = min(group, len(texts))
    out = []
    for start in range(0, len(texts) - size + 1, size):
        words = [text.split() for text in texts[start : start + size]]
        grams = [pair for row in words for pair in pairwise(row)]
        out.append(len(set(grams)) / max(1, len(grams)))
    return np.array(out)


def self_bleu(groups: Sequence[Sequence[Sequence[int]]]) -> np.ndarray:
    """Self-BLEU of each group of token sequences (the continuations of one prompt), 0 to 100.

    Mean over the group's members of BLEU against the others; n-grams of 1 to 4 tokens with equal weights, smoothing
    method 1, through nltk. Sequences include the prompt.
    """
    try:
        from nltk.translate.bleu_score import SmoothingFunction, sentence_bleu  # an optional dependency
    except ImportError as error:
        raise UserError("Self-BLEU needs nltk.", "Install it with `pip install 'di4c[text]'`.") from error
    smoothing = SmoothingFunction().method1
    out = []
    for group in groups:
        if len(group) < 2:
            raise UserError("Self-BLEU needs at least 2 samples in each group.", "Raise -n.")
        scores = [
            sentence_bleu([o for j, o in enumerate(group) if j != i], one, smoothing_function=smoothing)
            for i, one in enumerate(group)
        ]
        out.append(100 * float(np.mean(scores)))
    return np.array(out)


def grouped_self_bleu(ids: np.ndarray, group: int) -> np.ndarray:
    """Self-BLEU of each `group` consecutive rows of `(n, D)`; rows that fill no group are left out."""
    whole = len(ids) // group * group
    return self_bleu(ids[:whole].reshape(-1, group, ids.shape[1]).tolist())
