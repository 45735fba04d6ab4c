"""Text figures: bits per character under an n-gram model, perplexity under a causal judge, MAUVE; diversity."""

from __future__ import annotations

from collections.abc import Callable
from functools import lru_cache
from typing import Any

import numpy as np
from torch import Tensor

from di4c_cli.codec.text import Text
from di4c_cli.errors import UserError
from di4c_cli.evaluation.parts import ScoreParts, Scores
from di4c_cli.evaluation.protocol import PromptSpec
from di4c_cli.evaluation.results import Figure, Instrument
from di4c_cli.evaluation.sample_files import read_texts
from di4c_cli.evaluation.scorers.base import Scorer, ScorerContext, figure_of, register_scorer
from di4c_cli.metric.diversity import DISTINCT_GROUP, distinct, distinct_words, grouped_self_bleu, unigram_entropy
from di4c_cli.metric.gradient_moment import gradient_moment
from di4c_cli.metric.interval import of_mean
from di4c_cli.metric.judge import (
    PUBLISHED,
    STRICT,
    CausalJudge,
    load_judge,
    published_losses,
    published_text_losses,
    strict_scores,
)
from di4c_cli.metric.mauve import MAUVE_RUNS, MAUVE_SCALE, mauve_runs
from di4c_cli.metric.ngram import text_digest
from di4c_cli.tasks.text import TextTask

DEFAULT_JUDGE = "gpt2-large"
"""The judge of published generative perplexities."""
COMPARED_TOKENS = 100
"""Judge tokens of each text that MAUVE and the gradient moment compare."""
ANCHOR_SAMPLES = 1000
"""Held-out windows that show the figure of real text."""


def _load_judge(context: ScorerContext) -> CausalJudge:
    options = context.options
    return _cached_judge(options.judge or DEFAULT_JUDGE, options.device, options.precision == "bf16")


@lru_cache(maxsize=1)
def _cached_judge(ref: str, device: str, half: bool) -> CausalJudge:
    """The judge, shared by the scorers of one evaluation."""
    return load_judge(ref, device, half)


class TextScorer(Scorer):
    """Diversity of texts; with prompts, of the continuations of each prompt."""

    def __init__(self, prompts: PromptSpec | None) -> None:
        self.prompt, self.group = (prompts.given, prompts.times) if prompts else (0, 0)
        self.has_groups = self.prompt > 0 and self.group > 1

    def prompt_detail(self) -> dict[str, Any]:
        return {"prompt_tokens": self.prompt, "continuations": self.group} if self.prompt else {}

    def self_bleu_scores(self, ids: np.ndarray) -> Scores:
        return {"self_bleu": grouped_self_bleu(ids, self.group)} if self.has_groups else {}

    def self_bleu(self, parts: ScoreParts) -> dict[str, Figure]:
        """Self-BLEU of the continuations of each prompt; nothing without prompts."""
        if not self.has_groups:
            return {}
        note = f"{self.group} continuations, prompt included, the model's tokens"
        return {"self_bleu": figure_of(of_mean(parts.column("self_bleu"), over="prompts"), "lower", "0-100", note)}

    def mean(
        self,
        values: np.ndarray,
        better: str,
        unit: str = "",
        note: str = "",
        transform: Callable[[np.ndarray], np.ndarray] = lambda x: x,
    ) -> Figure:
        """Mean over samples; continuations of one prompt are not independent, so their mean is one value."""
        over = "samples"
        if self.has_groups and len(values) % self.group == 0:
            values, over = values.reshape(-1, self.group).mean(1), "prompts"
        return figure_of(of_mean(values, transform, over=over), better, unit, note)


@register_scorer("ngram")
class NgramScorer(TextScorer):
    """Bits per character of the task `words`; with a prompt, only the characters after it are scored."""

    main = "bits_per_char"

    def __init__(self, task: TextTask, prompts: PromptSpec | None) -> None:
        super().__init__(prompts)
        self.task, self.judge = task, task.judge
        real = task.codec.decode(task.data.held_out[:ANCHOR_SAMPLES])
        self.anchor = round(float(np.mean(self.judge.bits_per_character(real))), 4)

    @classmethod
    def create(cls, context: ScorerContext) -> NgramScorer:
        if not isinstance(context.task, TextTask):
            raise UserError("The character model judges the task words only.", "Use the scorer 'judge'.")
        return _ngram_scorer(context.task, context.prompts)

    def instrument(self) -> Instrument:
        reference = f"{len(self.task.lines[0])} training speeches of the task words"
        detail = {"held_out_bits_per_char": self.anchor, "scores": "with symbols", **self.prompt_detail()}
        name, digest = self.judge.name, self.judge.digest
        return Instrument(name=name, kind="judge", digest=digest, reference=reference, detail=detail)

    def score(self, x: Tensor, decoded: Any) -> Scores:
        ids = x.cpu().numpy()
        own = {"bits_per_char": self._bits(x, decoded), "entropy": unigram_entropy(ids[:, self.prompt :])}
        return own | (self.self_bleu_scores(ids) or {"distinct": distinct(ids, 2), "symbols": np.unique(ids)})

    def _bits(self, x: Tensor, decoded: list[str]) -> np.ndarray:
        if not self.prompt:
            return self.judge.bits_per_character(decoded)
        prompts = self.task.codec.decode(x[:, : self.prompt])
        return np.array(
            [
                -self.judge.log2_probs(text)[min(len(given), len(text) - 1) :].mean()
                for given, text in zip(prompts, decoded, strict=True)
            ]
        )

    def summarise(self, parts: ScoreParts) -> dict[str, Figure]:
        out = {
            "bits_per_char": self.mean(parts.column("bits_per_char"), "lower", "bits"),
            "entropy": self.mean(parts.column("entropy"), "higher", "nats"),
        }
        if self.has_groups:
            return out | self.self_bleu(parts)
        used = Figure(value=len(np.unique(parts.column("symbols"))), better="higher", note="depends on n")
        return out | {"distinct": _distinct(parts), "vocabulary": used}


@lru_cache(maxsize=1)
def _ngram_scorer(task: TextTask, prompts: PromptSpec | None) -> NgramScorer:
    return NgramScorer(task, prompts)


def _distinct(parts: ScoreParts, what: str = "bigrams") -> Figure:
    """Share of new bigrams without the last, smaller group, whose share would be larger."""
    values, last = parts.column("distinct"), list(parts.ranges())[-1][1]
    whole = values[:-1] if len(values) > 1 and last < DISTINCT_GROUP else values
    groups = f"groups of {DISTINCT_GROUP} samples"
    return figure_of(of_mean(whole, over=groups), "higher", note=f"{what}, {groups}")


@register_scorer("judge")
class JudgeScorer(TextScorer):
    """Perplexity of samples. `direct`: their ids are the judge's own, so the published protocol applies.

    It applies to texts from a file as well: they have no ids, and the judge's tokens take their place. The strict
    protocol reads the decoded text; of a continuation it counts what comes after the prompt, and `codec` decodes that.
    """

    def __init__(self, judge: CausalJudge, direct: bool, prompts: PromptSpec | None, codec: Any = None) -> None:
        super().__init__(prompts)
        self.judge, self.direct, self.codec = judge, direct, codec
        self.strict = not (direct and prompts)
        self.main = "perplexity" if direct else "perplexity_strict"

    @classmethod
    def create(cls, context: ScorerContext) -> JudgeScorer:
        judge = _load_judge(context)
        codec = None if context.model is None else context.model.codec
        same = isinstance(codec, Text) and judge.same_tokens(codec.tokenizer)
        return cls(judge, same or context.model is None, context.prompts, codec)

    def instrument(self) -> Instrument:
        protocols = [PUBLISHED] * self.direct + [STRICT] * self.strict
        detail = {"protocols": protocols, "window": self.judge.window, "distinct": "words", **self.prompt_detail()}
        return Instrument(name=self.judge.name, kind="judge", digest=self.judge.digest, detail=detail)

    def score(self, x: Tensor, decoded: Any) -> Scores:
        if not isinstance(decoded, list):
            raise UserError("A judge reads text, not images.", "Leave --judge out.")
        ids = x.cpu().numpy()
        out: Scores = {"entropy": self._entropy(ids, decoded), **self.self_bleu_scores(ids)}
        if self.direct:
            has_ids = bool(x.shape[1])
            out["loss"] = (
                published_losses(self.judge, x, self.prompt) if has_ids else published_text_losses(self.judge, decoded)
            )
        if self.strict:
            out["strict"] = np.array(strict_scores(self.judge, decoded))
        if self.strict and self.prompt:
            given = self.codec.decode(x[:, : self.prompt])
            out["strict"] = out["strict"] - np.array(strict_scores(self.judge, given))
        if not self.prompt:
            out["distinct"] = distinct_words(decoded)
        return out

    def _entropy(self, ids: np.ndarray, decoded: list[str]) -> np.ndarray:
        """Entropy of the model's own tokens; of the judge's tokens where there are only texts."""
        if ids.shape[1]:
            return unigram_entropy(ids[:, self.prompt :])
        rows = [np.array([self.judge.encode(text) or [0]]) for text in decoded]
        return np.concatenate([unigram_entropy(row) for row in rows])

    def summarise(self, parts: ScoreParts) -> dict[str, Figure]:
        out: dict[str, Figure] = {}
        where = f", positions from {self.prompt}" if self.prompt else ""
        if self.direct:
            losses = parts.column("loss")
            if np.isnan(losses).all():
                raise UserError("All samples are empty for the judge.", "Look at the samples.")
            losses = losses[~np.isnan(losses)]
            out["perplexity"] = self.mean(losses, "lower", note=f"{PUBLISHED} protocol{where}", transform=np.exp)
        if self.strict:
            out |= self._strict_figures(parts.column("strict"), f"{STRICT} protocol{where}")
        if not self.prompt:
            out["distinct"] = _distinct(parts, "bigrams of words")
        out["entropy"] = self.mean(parts.column("entropy"), "higher", "nats")
        return out | self.self_bleu(parts)

    def _strict_figures(self, sums: np.ndarray, note: str) -> dict[str, Figure]:
        nats, tokens, size = sums[(sums[:, 1:] > 0).all(1)].T
        if len(nats) == 0:
            raise UserError("All samples are empty for the judge.", "Look at the samples.")
        return {
            "perplexity_strict": self.mean(nats / tokens, "lower", note=note, transform=np.exp),
            "bits_per_byte": self.mean(nats / np.log(2) / size, "lower", "bits", note),
        }


def judge_scorers(context: ScorerContext) -> tuple[str, ...]:
    """A judge's scorers; two of them compare with real texts, if there are any."""
    return ("judge",) if context.options.reference is None or context.prompts else ("judge", "gradient_moment", "mauve")


class ReferenceScorer(Scorer):
    """Compares the judge's features of samples with those of real texts."""

    needs = ""
    """What the user is told it is."""

    def __init__(self, judge: CausalJudge, reference: list[str], name: str) -> None:
        self.judge, self.name = judge, name
        self.reference_count, self.reference_digest = len(reference), text_digest(reference)
        self.reference = self.features(reference).double().numpy()

    @classmethod
    def create(cls, context: ScorerContext) -> ReferenceScorer:
        path = context.options.reference
        if context.image_size or (context.model is not None and not isinstance(context.model.codec, Text)):
            raise UserError(f"{cls.needs} compares texts.", "Name a text model with --student or --teacher.")
        if path is None:
            raise UserError(f"{cls.needs} compares with real texts.", "Name them with --reference FILE.txt.")
        texts = read_texts(path)
        if len(texts) < 2:
            raise UserError(f"{path} holds one text only.", "Give real texts, one per line.")
        return cls(_load_judge(context), texts, path.name)

    def features(self, texts: list[str]) -> Tensor:
        """One row for each text."""
        raise NotImplementedError

    def detail(self) -> dict[str, Any]:
        """Settings that the figure depends on."""
        return {"tokens": COMPARED_TOKENS}

    def instrument(self) -> Instrument:
        return Instrument(
            name=self.judge.name,
            kind="judge",
            digest=self.judge.digest,
            reference=self.name,
            reference_n=self.reference_count,
            reference_digest=self.reference_digest,
            detail=self.detail(),
        )

    def score(self, x: Tensor, decoded: Any) -> Scores:
        return {"features": self.features(decoded).numpy().astype(np.float32)}


@register_scorer("mauve")
class MauveScorer(ReferenceScorer):
    """MAUVE of samples against real texts: the mean over runs of the quantisation."""

    main, needs = "mauve", "MAUVE"

    def features(self, texts: list[str]) -> Tensor:
        return self.judge.features(texts, COMPARED_TOKENS)

    def detail(self) -> dict[str, Any]:
        return {"runs": MAUVE_RUNS, "scale": MAUVE_SCALE, **super().detail(), "features": "last hidden state"}

    def summarise(self, parts: ScoreParts) -> dict[str, Figure]:
        runs = mauve_runs(parts.column("features"), self.reference)
        spread = float(runs.std(ddof=1))
        note = f"mean of {MAUVE_RUNS} runs, their standard deviation {spread:.4f}; depends on n"
        return {"mauve": Figure(value=float(runs.mean()), better="higher", note=note)}


@register_scorer("gradient_moment")
class GradientMomentScorer(ReferenceScorer):
    """Distance of the judge's mean gradient on samples from that on real texts."""

    main, needs = "gradient_moment", "The gradient moment"

    def features(self, texts: list[str]) -> Tensor:
        return self.judge.gain_gradients(texts, COMPARED_TOKENS)

    def summarise(self, parts: ScoreParts) -> dict[str, Figure]:
        interval = gradient_moment(parts.column("features"), self.reference)
        return {"gradient_moment": figure_of(interval, "lower", note="unbiased, so it may be below zero")}
