"""Reference, control rows and prompts of the experiment in docs/results.md, from the corpus of `tools.fetch_corpus`.

    python -m tools.english TEACHER corpus OUT [--judge FILE.gguf]

TEACHER gives tokenizer and length of the windows. OUT gets `reference.jsonl` and `real.jsonl` (different held-out
windows), the control rows `five-gram.jsonl`, `unigram.jsonl`, `shuffled.jsonl` (the words of each real window) and
`repeated.jsonl` (one real sentence, again and again), and `prompts.jsonl`. The last line is a JSON object: bits per
byte of the held-out text under the 5-gram model, the teacher's bound and, with --judge, that judge.
"""

from __future__ import annotations

import argparse
import json
import math
from pathlib import Path

import numpy as np
import torch

from di4c_cli.codec.text import END_OF_TEXT, Text
from di4c_cli.data.source import find_items
from di4c_cli.data.tokens import PackedItems
from di4c_cli.metric.judge import load_judge, strict_scores
from di4c_cli.metric.ngram import NgramModel
from di4c_cli.model import Model, load

ORDER, SAMPLES, PROMPTS, SEED = 5, 512, 64, 0


def ids_of(corpus: Path, model: Model) -> np.ndarray:
    """The tokens of a folder of documents, joined by end-of-text."""
    items = find_items(str(corpus), model)
    assert isinstance(items, PackedItems)
    return np.asarray(items.ids[: len(items.ids)]).astype(np.int64)


def draw(model: NgramModel, history: list[int], generator: np.random.Generator) -> int:
    """One symbol after the history: at every order either one of its counts, or a shorter history."""
    for length in range(model.order, 0, -1):
        seen, count, context, total, kinds = model.tables[length - 1]
        code = 0
        for symbol in history[len(history) - length + 1 :]:
            code = code * model.base + symbol
        place = int(np.searchsorted(context, code))
        if place == len(context) or context[place] != code:
            continue
        u = generator.random() * (total[place] + kinds[place])
        if u < total[place]:
            first, last = np.searchsorted(seen, [code * model.base, (code + 1) * model.base])
            return int(seen[first + np.searchsorted(np.cumsum(count[first:last]), u, side="right")] % model.base)
    return int(generator.integers(model.base))


def stream(model: NgramModel, length: int, generator: np.random.Generator) -> np.ndarray:
    """One long text of an n-gram model, as ids of the tokenizer."""
    out = [model.start] * model.order
    while len(out) < length + model.order:
        out.append(max(1, draw(model, out, generator)))
    return np.array(out[model.order :]) - 1


def controls(real: list[str], generator: np.random.Generator) -> dict[str, list[str]]:
    """Control rows made of real windows."""
    sentence = max((part.strip() for text in real for part in text.split(".") if len(part) <= 120), key=len) + ". "
    shuffled = [" ".join(generator.permutation(text.split()).tolist()) for text in real]
    size = round(float(np.mean([len(text) for text in real])))
    return {"shuffled": shuffled, "repeated": [(sentence * size)[:size]] * len(real)}


def windows(ids: np.ndarray, length: int, count: int, generator: np.random.Generator) -> np.ndarray:
    """`count` different windows `(count, length)` of a text."""
    starts = generator.permutation(len(ids) // length)[:count] * length
    return np.stack([ids[start : start + length] for start in starts])


@torch.no_grad()
def bound(model: Model, rows: np.ndarray, repeats: int = 8) -> float:
    """The teacher's negative ELBO in nats per token: mean loss of the masked positions, its number uniform."""
    x0, total, count = torch.from_numpy(rows), 0.0, 0
    generator = torch.Generator().manual_seed(SEED)
    for _ in range(repeats):
        for part in x0.split(64):
            order = torch.rand(part.shape, generator=generator).argsort(1).argsort(1)
            masked = torch.randint(1, part.shape[1] + 1, (len(part), 1), generator=generator)
            unknown = order < masked
            x_t = torch.where(unknown, model.denoiser.process.symbols, part)
            log_p = model.denoiser.predict(x_t, (masked / part.shape[1]).squeeze(1), None, None).dense()
            nll = -log_p.gather(2, part[:, :, None]).squeeze(2)
            total += float(torch.where(unknown, nll / masked, 0.0).sum())
            count += len(part)
    return total / count


def main(arguments: list[str] | None = None) -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("teacher")
    parser.add_argument("corpus", type=Path)
    parser.add_argument("out", type=Path)
    parser.add_argument("--judge", help="folder or .gguf file of a causal language model")
    given = parser.parse_args(arguments)
    model, generator = load(given.teacher), np.random.default_rng(SEED)
    assert isinstance(model.codec, Text)
    length, size = model.denoiser.length, model.codec.tokenizer.get_vocab_size()
    train, held_out = (ids_of(given.corpus / name, model) for name in ("train", "held-out"))
    end = model.codec.tokenizer.token_to_id(END_OF_TEXT) or 0  # what precedes a text
    rows = windows(held_out, length, 2 * SAMPLES + PROMPTS, generator)
    unigram = np.bincount(train, minlength=size) / len(train)
    five_gram = NgramModel([train + 1], size + 1, end + 1, ORDER)
    texts = {
        "reference": rows[:SAMPLES],
        "real": rows[SAMPLES : 2 * SAMPLES],
        "prompts": rows[2 * SAMPLES :],
        "five-gram": stream(five_gram, SAMPLES * length, generator).reshape(SAMPLES, length),
        "unigram": generator.choice(size, (SAMPLES, length), p=unigram),
    }
    written = {name: model.codec.decode(torch.from_numpy(ids)) for name, ids in texts.items()}
    written |= controls(written["real"], generator)
    given.out.mkdir(parents=True, exist_ok=True)
    for name, lines in written.items():
        body = "".join(json.dumps({"text": line}) + "\n" for line in lines)
        (given.out / f"{name}.jsonl").write_text(body, encoding="utf-8")
    real = texts["real"]
    per_token = len("".join(written["real"]).encode()) / real.size
    found = {
        "held_out_tokens": len(held_out),
        "training_tokens": len(train),
        "bytes_per_token": per_token,
        "five_gram": -float(five_gram.log2_of(held_out + 1).mean()) / per_token,
        "teacher_bound": bound(model, real) / math.log(2) / per_token,
    }
    if given.judge:
        scores = strict_scores(load_judge(given.judge), written["real"])
        found["judge"] = sum(score.nats for score in scores) / math.log(2) / sum(score.bytes for score in scores)
    for name, value in found.items():
        print(f"{name:20} {value:.4g}")
    print(json.dumps(found))


if __name__ == "__main__":
    main()
