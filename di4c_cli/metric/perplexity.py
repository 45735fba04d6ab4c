"""Generative perplexity in two named protocols.

`published`: the sample's own ids are scored directly, all tokens (the first is only given), exp of the mean
of the per-sample means; with a prompt, only the positions after it. `strict`: the decoded text is tokenised
again by the judge, the first token is judged too, tokens after the first end-of-text do not count, and the
bits per byte say the same independently of the judge's tokenizer.
"""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
import torch
from torch import Tensor

from di4c_cli.metric.judge import CausalJudge

PUBLISHED, STRICT = "published", "strict"


def published_losses(judge: CausalJudge, ids: Tensor, prompt: int = 0) -> np.ndarray:
    """Mean loss in nats of each sample's tokens from position `prompt` on, `(n, D)` -> `(n,)`."""
    losses = judge.losses(ids)
    # losses[:, i] belongs to position i + 1
    out: np.ndarray = losses[:, max(0, prompt - 1) :].double().mean(1).numpy()
    return out


@dataclass(frozen=True)
class StrictScore:
    """Sums over the tokens of one text that count."""

    nats: float
    tokens: int
    bytes: int


def strict_score(judge: CausalJudge, text: str) -> StrictScore:
    """One text, retokenised, up to and with its first end-of-text, cut to the judge's window."""
    ids = judge.encode(text)
    if judge.end is not None and judge.end in ids:
        ids = ids[: ids.index(judge.end) + 1]
    given = [] if judge.start is None else [judge.start]
    ids = ids[: judge.window - len(given)]
    if len(given) + len(ids) < 2:
        return StrictScore(0.0, 0, 0)
    losses = judge.losses(torch.tensor([given + ids]))[0].double()
    counted = ids if given else ids[1:]
    ended = bool(counted) and counted[-1] == judge.end
    visible = counted[:-1] if ended else counted
    size = len(judge.tokenizer.decode(visible).encode()) if visible else 0
    # end-of-text is charged, but it is not a byte of the text; a text of nothing else counts as one
    return StrictScore(float(losses.sum()), len(counted), max(1, size))
