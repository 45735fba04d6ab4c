"""Text figures of the embedded world: bits per character under the n-gram judge, and diversity beside it."""

from __future__ import annotations

from typing import Any

import numpy as np
from torch import Tensor

from di4c_cli.codec import Codec
from di4c_cli.evaluation.parts import Parts, Scores
from di4c_cli.evaluation.result import Figure, Instrument
from di4c_cli.evaluation.scorer import Scorer, figure
from di4c_cli.metric.diversity import GROUP, distinct, grouped_self_bleu, unigram_entropy
from di4c_cli.metric.interval import of_mean
from di4c_cli.metric.ngram import CharacterModel


class NgramScorer(Scorer):
    """Quality by a character model, diversity by each sample's own tokens; neither means much alone.

    With a prompt, only the characters after it are judged and Self-BLEU compares the `group` continuations.
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

    def summarise(self, parts: Parts) -> dict[str, Figure]:
        out = {
            "bits_per_char": figure(of_mean(self._means(parts.column("bits_per_char"))), "lower", "bits"),
            "entropy": figure(of_mean(self._means(parts.column("entropy"))), "higher", "nats"),
        }
        if self.prompt and self.group > 1:
            note = f"{self.group} continuations, prompt included, the model's tokens"
            out["self_bleu"] = figure(of_mean(parts.column("self_bleu")), "lower", "0-100", note)
        else:
            note = f"bigrams, groups of {GROUP} samples"
            out["distinct"] = figure(of_mean(_whole_groups(parts)), "higher", note=note)
        return out

    def _means(self, values: np.ndarray) -> np.ndarray:
        """Continuations of one prompt are not independent: their mean is one value."""
        if self.prompt and self.group > 1 and len(values) % self.group == 0:
            return values.reshape(-1, self.group).mean(1)
        return values


def _whole_groups(parts: Parts) -> np.ndarray:
    """Shares of new bigrams; the last, smaller group of a long evaluation would look more varied."""
    values = parts.column("distinct")
    last = list(parts.ranges())[-1][1]
    return values[:-1] if len(values) > 1 and last < GROUP else values
