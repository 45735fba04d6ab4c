"""Figures of tiny-text: bits per character under its character model, and diversity."""

from __future__ import annotations

from functools import lru_cache
from typing import Any

import numpy as np
from torch import Tensor

from di4c_cli.codec import Codec
from di4c_cli.errors import UserError
from di4c_cli.evaluation.parts import ScoreParts, Scores
from di4c_cli.evaluation.results import Figure, Instrument
from di4c_cli.evaluation.scorers.base import Scorer, ScorerContext, figure_of, register_scorer
from di4c_cli.metric.diversity import DISTINCT_GROUP, distinct, grouped_self_bleu, unigram_entropy
from di4c_cli.metric.interval import of_mean
from di4c_cli.metric.ngram import CharacterModel
from di4c_cli.tasks.text import TextTask

ANCHOR_SAMPLES = 1000
"""Held-out windows that show the figure of real text."""


@register_scorer("ngram")
class NgramScorer(Scorer):
    """Quality by a character model, diversity by each sample's own tokens.

    With a prompt, only the characters after it are scored and Self-BLEU compares the `group` continuations.
    """

    main = "bits_per_char"

    def __init__(
        self,
        judge: CharacterModel,
        fitted_to: str,
        anchor: float | None = None,
        decoder: Codec | None = None,
        prompt: int = 0,
        group: int = 0,
    ) -> None:
        self.judge, self.fitted_to, self.anchor = judge, fitted_to, anchor
        self.decoder, self.prompt, self.group = decoder, prompt, group

    @classmethod
    def create(cls, context: ScorerContext) -> NgramScorer:
        """With the bits per character of real held-out text, in windows as long as the samples."""
        if not isinstance(context.task, TextTask):
            raise UserError("The character model judges tiny-text only.", "Use the scorer 'judge'.")
        return _tiny_text_scorer(context.task, context.prompt, context.group)

    def instrument(self) -> Instrument:
        detail: dict[str, Any] = {} if self.anchor is None else {"held_out_bits_per_char": self.anchor}
        if self.prompt:
            detail |= {"prompt_tokens": self.prompt, "continuations": self.group}
        return Instrument(
            name=self.judge.name,
            kind="judge",
            digest=self.judge.digest,
            reference=self.fitted_to,
            detail=detail,
        )

    def score(self, x: Tensor, decoded: Any) -> Scores:
        ids = x.cpu().numpy()
        own = {"bits_per_char": self._bits(x, decoded), "entropy": unigram_entropy(ids[:, self.prompt :])}
        if self.prompt and self.group > 1:
            return own | {"self_bleu": grouped_self_bleu(ids, self.group)}
        return own | {"distinct": distinct(ids, 2)}

    def _bits(self, x: Tensor, decoded: list[str]) -> np.ndarray:
        if not self.prompt or self.decoder is None:
            return self.judge.bits_per_character(decoded)
        prompts = self.decoder.decode(x[:, : self.prompt])
        return np.array(
            [
                -self.judge.log2_probs(text)[min(len(given), len(text) - 1) :].mean()
                for given, text in zip(prompts, decoded, strict=True)
            ]
        )

    def summarise(self, parts: ScoreParts) -> dict[str, Figure]:
        out = {
            "bits_per_char": figure_of(of_mean(self._means(parts.column("bits_per_char"))), "lower", "bits"),
            "entropy": figure_of(of_mean(self._means(parts.column("entropy"))), "higher", "nats"),
        }
        if self.prompt and self.group > 1:
            note = f"{self.group} continuations, prompt included, the model's tokens"
            out["self_bleu"] = figure_of(of_mean(parts.column("self_bleu")), "lower", "0-100", note)
        else:
            note = f"bigrams, groups of {DISTINCT_GROUP} samples"
            out["distinct"] = figure_of(of_mean(_whole_groups(parts)), "higher", note=note)
        return out

    def _means(self, values: np.ndarray) -> np.ndarray:
        """Continuations of one prompt are not independent, so their mean is one value."""
        if self.prompt and self.group > 1 and len(values) % self.group == 0:
            return values.reshape(-1, self.group).mean(1)
        return values


def _whole_groups(parts: ScoreParts) -> np.ndarray:
    """Shares of new bigrams without the last, smaller group, whose share would be larger."""
    values = parts.column("distinct")
    last = list(parts.ranges())[-1][1]
    return values[:-1] if len(values) > 1 and last < DISTINCT_GROUP else values


@lru_cache(maxsize=1)
def _tiny_text_scorer(task: TextTask, prompt: int, group: int) -> NgramScorer:
    real = task.codec.decode(task.data.held_out[:ANCHOR_SAMPLES])
    anchor = float(np.mean(task.judge.bits_per_character(real)))
    fitted_to = f"{len(task.lines[0])} training speeches of tiny-text"
    return NgramScorer(task.judge, fitted_to, round(anchor, 4), task.codec, prompt, group)
