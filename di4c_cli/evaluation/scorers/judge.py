"""Text figures under a causal judge: perplexity by both protocols, bits per byte, entropy; and MAUVE."""

from __future__ import annotations

from typing import Any

import numpy as np
from torch import Tensor

from di4c_cli.codec.text import Text
from di4c_cli.errors import UserError
from di4c_cli.evaluation.parts import ScoreParts, Scores
from di4c_cli.evaluation.results import Figure, Instrument
from di4c_cli.evaluation.sample_files import read_texts
from di4c_cli.evaluation.scorers.base import Scorer, ScorerContext, figure_of, register_scorer
from di4c_cli.metric.diversity import grouped_self_bleu, unigram_entropy
from di4c_cli.metric.interval import of_mean
from di4c_cli.metric.judge import PUBLISHED, STRICT, CausalJudge, load_judge, published_losses, strict_score
from di4c_cli.metric.mauve import MAUVE_RUNS, MAUVE_SCALE, mauve_runs
from di4c_cli.metric.ngram import text_digest

DEFAULT_JUDGE = "gpt2-large"
"""The judge of published generative perplexities."""
MAUVE_TOKENS = 100
"""Judge tokens of each text that MAUVE compares."""


def _load(context: ScorerContext) -> CausalJudge:
    return load_judge(context.options.judge or DEFAULT_JUDGE, context.options.device)


@register_scorer("judge")
class JudgeScorer(Scorer):
    """Perplexity of samples; with `prompt` tokens given, of continuations, with their Self-BLEU.

    `direct`: the samples' ids are the judge's own, so that the published protocol applies.
    """

    def __init__(self, judge: CausalJudge, direct: bool, prompt: int = 0, group: int = 0) -> None:
        if prompt and not direct:
            raise UserError(
                f"{judge.name} has another tokenizer than the model, so continuations cannot be judged.",
                "Name a --judge with the model's tokenizer.",
            )
        self.judge, self.direct, self.prompt, self.group = judge, direct, prompt, group
        self.main = "perplexity" if direct else "perplexity_strict"

    @classmethod
    def create(cls, context: ScorerContext) -> JudgeScorer:
        judge = _load(context)
        codec = None if context.model is None else context.model.codec
        direct = isinstance(codec, Text) and judge.same_tokens(codec.tokenizer)
        return cls(judge, direct, context.prompt, context.group)

    def instrument(self) -> Instrument:
        protocols = (
            [PUBLISHED, STRICT] if self.direct and not self.prompt else [PUBLISHED if self.direct else STRICT]
        )
        detail: dict[str, Any] = {"protocols": protocols, "window": self.judge.window}
        if self.prompt:
            detail |= {"prompt_tokens": self.prompt, "continuations": self.group}
        return Instrument(name=self.judge.name, kind="judge", digest=self.judge.digest, detail=detail)

    def score(self, x: Tensor, decoded: Any) -> Scores:
        if not isinstance(decoded, list):
            raise UserError("A judge reads text, not images.", "Leave --judge out.")
        ids = x.cpu().numpy()
        out: Scores = {"entropy": self._entropy(ids, decoded)}
        if self.direct:
            out["loss"] = published_losses(self.judge, x, self.prompt)
        if self.prompt and self.group > 1:
            out["self_bleu"] = grouped_self_bleu(ids, self.group)
        if not self.prompt:
            strict = [strict_score(self.judge, text) for text in decoded]
            out["strict"] = np.array([[s.nats, s.tokens, s.bytes] for s in strict])
        return out

    def _entropy(self, ids: np.ndarray, decoded: list[str]) -> np.ndarray:
        """Entropy of the model's own tokens; of the judge's tokens where there are only texts."""
        if ids.shape[1]:
            return unigram_entropy(ids[:, self.prompt :])
        rows = [np.array([self.judge.encode(text) or [0]]) for text in decoded]
        return np.concatenate([unigram_entropy(row) for row in rows])

    def summarise(self, parts: ScoreParts) -> dict[str, Figure]:
        out: dict[str, Figure] = {}
        if self.direct:
            note = f"{PUBLISHED} protocol" + (f", positions from {self.prompt}" if self.prompt else "")
            out["perplexity"] = figure_of(self._of_means(parts.column("loss"), np.exp), "lower", note=note)
        if not self.prompt:
            out |= self._strict(parts.column("strict"))
        out["entropy"] = figure_of(self._of_means(parts.column("entropy")), "higher", "nats")
        if self.prompt and self.group > 1:
            note = f"{self.group} continuations, prompt included, the model's tokens"
            out["self_bleu"] = figure_of(of_mean(parts.column("self_bleu")), "lower", "0-100", note)
        return out

    def _of_means(self, values: np.ndarray, transform: Any = None) -> Any:
        """Continuations of one prompt are not independent, so prompts are resampled, not continuations."""
        if self.prompt and self.group > 1 and len(values) % self.group == 0:
            values = values.reshape(-1, self.group).mean(1)
        return of_mean(values, transform)

    def _strict(self, sums: np.ndarray) -> dict[str, Figure]:
        nats, tokens, size = sums[sums[:, 1] > 0].T
        if len(nats) == 0:
            raise UserError("All samples are empty for the judge.", "Look at the samples.")
        note = f"{STRICT} protocol"
        return {
            "perplexity_strict": figure_of(of_mean(nats / tokens, np.exp), "lower", note=note),
            "bits_per_byte": figure_of(of_mean(nats / np.log(2) / size), "lower", "bits", note),
        }


@register_scorer("mauve")
class MauveScorer(Scorer):
    """MAUVE of samples against real texts: the mean over runs of the quantisation."""

    main = "mauve"

    def __init__(self, judge: CausalJudge, reference: list[str], name: str) -> None:
        self.judge, self.name = judge, name
        self.reference_count, self.reference_digest = len(reference), text_digest(reference)
        self.reference = judge.features(reference, MAUVE_TOKENS).double().numpy()

    @classmethod
    def create(cls, context: ScorerContext) -> MauveScorer:
        path = context.options.reference
        if path is None:
            raise UserError("MAUVE compares with real texts.", "Name them with --reference FILE.txt.")
        return cls(_load(context), read_texts(path), path.name)

    def instrument(self) -> Instrument:
        return Instrument(
            name=self.judge.name,
            kind="judge",
            digest=self.judge.digest,
            reference=self.name,
            reference_n=self.reference_count,
            reference_digest=self.reference_digest,
            detail={
                "runs": MAUVE_RUNS,
                "scale": MAUVE_SCALE,
                "tokens": MAUVE_TOKENS,
                "features": "last hidden state",
            },
        )

    def score(self, x: Tensor, decoded: Any) -> Scores:
        return {"features": self.judge.features(decoded, MAUVE_TOKENS).numpy().astype(np.float32)}

    def summarise(self, parts: ScoreParts) -> dict[str, Figure]:
        runs = mauve_runs(parts.column("features"), self.reference)
        spread = float(runs.std(ddof=1))
        note = f"mean of {MAUVE_RUNS} runs, their standard deviation {spread:.4f}; depends on n"
        return {"mauve": Figure(value=float(runs.mean()), better="higher", note=note)}
