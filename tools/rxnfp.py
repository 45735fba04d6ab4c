"""A real pretrained masked language model through di4c: the BERT of chemical reactions inside PyPI's `rxnfp` 0.1.0.

    python -m tools.rxnfp FOLDER

fetches the wheels of rxnfp (the model, MIT) and rxnmapper (real reactions in its tests, MIT) without dependencies,
loads the legacy pickle through the BERT format, fills masks of real reactions, samples from nothing but masks, trains
on at all mask rates with what the model itself writes (`di4c pretrain --teacher`), and distils the result without data
(`di4c distill`). The last line is one JSON object. Half of the reactions are measured; the other half only starts the
model's own chains.
"""

from __future__ import annotations

import argparse
import json
import random
import re
import subprocess
import sys
import zipfile
from collections import Counter
from itertools import chain
from pathlib import Path
from typing import Any

import numpy as np
import torch

from di4c_cli import load
from di4c_cli.model import Model

WHEELS = ("rxnfp==0.1.0", "rxnmapper==0.4.3")
MODEL = "rxnfp/models/transformers/bert_pretrained"
ATOMS = r"\[[^\]]+\]|Br|Cl|>>|%[0-9][0-9]|[A-Za-z0-9().=#+\-\\/:~@?*$]"
"""Parts of a reaction string: bracketed atoms, two-letter atoms, the arrow, ring numbers, single characters."""
REACTION = re.compile(r"[\w@+\-\[\]()\\/=#%.~]{8,300}>>[\w@+\-\[\]()\\/=#%.~]{5,200}")
LENGTH = 128
SHARES = (0.15, 0.5, 0.9, 1.0)
INNER = 62
"""Positions of a sample between [CLS] and [SEP]."""


def fetch(folder: Path) -> list[Path]:
    """The wheels, downloaded if they are not there."""
    if not list(folder.glob("rxnfp-*.whl")) or not list(folder.glob("rxnmapper-*.whl")):
        words = [sys.executable, "-m", "pip", "download", "-q", "--no-deps", "-d", str(folder), *WHEELS]
        subprocess.run(words, check=True)
    return sorted(folder.glob("*.whl"))


def unpack(wheels: list[Path], folder: Path) -> list[str]:
    """Write the model's folder with a tokenizer.json; gives the real reactions of both packages.

    Parts are split at punctuation too, so that `[`, `]`, `+`, `@` and `>` are [UNK]: so read, the model fills 15 % of
    masks with 0.5 nats, and with 2.4 if bracketed atoms are tokens. Its training must have split them in this way.
    """
    folder.mkdir(exist_ok=True)
    found: set[str] = set()
    for wheel in wheels:
        with zipfile.ZipFile(wheel) as archive:
            for name in archive.namelist():
                if name.startswith(f"{MODEL}/"):
                    (folder / Path(name).name).write_bytes(archive.read(name))
                elif name.endswith(("METADATA", "tests/test_mapper.py", "tests/test_batched_mapper.py")):
                    found |= set(REACTION.findall(archive.read(name).decode()))
    vocabulary = {token: id for id, token in enumerate((folder / "vocab.txt").read_text().splitlines())}
    cut = {"type": "Split", "pattern": {"Regex": ATOMS}, "behavior": "Isolated", "invert": False}
    model = {"type": "WordLevel", "vocab": vocabulary, "unk_token": "[UNK]"}
    split = {"type": "Sequence", "pretokenizers": [cut, {"type": "Punctuation", "behavior": "Isolated"}]}
    tree = {"version": "1.0", "pre_tokenizer": split, "decoder": {"type": "Fuse"}, "model": model}
    (folder / "tokenizer.json").write_text(json.dumps(tree))
    return sorted(text for text in found if ":" not in text)


def encoded(model: Model, reactions: list[str]) -> list[list[int]]:
    """Reactions between [CLS] and [SEP]."""
    first, last = (special(model, token) for token in ("[CLS]", "[SEP]"))
    rows = [[first, *model.codec.encode(text), last] for text in reactions]
    return [row for row in rows if len(row) <= LENGTH]


def special(model: Model, token: str) -> int:
    """The id of a token."""
    tokenizer: Any = model.codec.tokenizer  # type: ignore[attr-defined]
    return int(tokenizer.token_to_id(token))


def fill(model: Model, rows: list[list[int]], share: float, repeats: int, seed: int = 0) -> dict[str, float]:
    """Accuracy and cross-entropy at masked positions, against always guessing the most frequent token."""
    draw = random.Random(seed)
    usual = Counter(token for row in rows for token in row[1:-1]).most_common(1)[0][0]
    right = chance = total = 0
    nats = 0.0
    for row in rows:
        inner = range(1, len(row) - 1)
        for _ in range(repeats):
            hidden = draw.sample(inner, max(1, round(share * len(inner))))
            x = torch.tensor([row])
            x[0, hidden] = model.denoiser.symbols
            log_p = model.log_probs(x, share)[0, hidden]
            truth = torch.tensor([row[place] for place in hidden])
            right += int((log_p.argmax(-1) == truth).sum())
            chance += int((truth == usual).sum())
            nats -= float(log_p.gather(1, truth[:, None]).sum())
            total += len(hidden)
    return {"accuracy": right / total, "chance": chance / total, "nats": nats / total, "masks": total}


def well_formed(text: str) -> bool:
    """Parentheses match and every ring opens and closes; no chemistry is checked."""
    depth = 0
    for letter in text:
        depth += {"(": 1, ")": -1}.get(letter, 0)
        if depth < 0:
            return False
    return depth == 0 and all(text.count(digit) % 2 == 0 for digit in "123456789")


def from_masks(model: Model, count: int, steps: int) -> dict[str, Any]:
    """Samples at t = 1: all of the inner positions are masks."""
    given = torch.full((count, INNER + 2), -1)
    given[:, 0], given[:, -1] = special(model, "[CLS]"), special(model, "[SEP]")
    texts = model.decode(model.sample(count, steps=steps, given=given))
    return {"well_formed": sum(map(well_formed, texts)) / count, "example": texts[0]}


def own_writing(model: Model, rows: list[list[int]], chains: int, rounds: int) -> list[list[int]]:
    """What the model writes where it is good: chains from real reactions, 15 % masked and filled again and again."""
    kept: list[list[int]] = []
    generator = torch.Generator().manual_seed(0)
    for number, row in enumerate(rows):
        x = torch.tensor(row).repeat(chains, 1)
        for turn in range(rounds):
            hidden = torch.rand(x.shape, generator=generator) < 0.15
            hidden[:, 0] = hidden[:, -1] = False
            given = x.masked_fill(hidden, -1)
            x = model.sample(chains, steps=1, seed=turn, first=number * chains, given=given, tile=0)
            if turn >= rounds // 2:
                kept += x.tolist()
    return kept


def write_rows(texts: list[list[int]], folder: Path) -> list[str]:
    """Flags with the data of `di4c pretrain`: rows that begin with a text and go on with others; a tenth held out."""
    random.Random(0).shuffle(texts)
    rows = [list(chain(*(texts * 2)[first : first + LENGTH // 3]))[:LENGTH] for first in range(len(texts))]
    flags = []
    for flag, part in (("--data", rows[len(rows) // 10 :]), ("--held-out", rows[: len(rows) // 10])):
        flags += [flag, str(folder / f"{flag[2:]}.npy")]
        np.save(flags[-1], np.array(part, np.uint16))
    return flags


def di4c(*words: str) -> None:
    """The real command."""
    print("di4c", *words, flush=True)
    subprocess.run([sys.executable, "-m", "di4c_cli", *words], check=True)


def flags(settings: list[str]) -> list[str]:
    """Recipe values as words of a command."""
    return [word for setting in settings for word in ("--set", setting)]


def measured(model: Model, rows: list[list[int]], repeats: int, samples: int) -> dict[str, Any]:
    """Filled masks at every share, and samples from masks alone at 1, 8 and 32 steps."""
    report: dict[str, Any] = {"fill": {share: fill(model, rows, share, repeats) for share in SHARES}}
    report["samples"] = {steps: from_masks(model, samples, steps) for steps in (1, 8, 32)}
    for kind, found in report.items():
        for key, value in found.items():
            print(kind, key, value, flush=True)
    return report


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("folder", type=Path)
    parser.add_argument("--repeats", type=int, default=10, help="random masks for each reaction")
    parser.add_argument("--samples", type=int, default=32)
    parser.add_argument("--chains", type=int, default=16, help="chains of the model's own from each reaction")
    parser.add_argument("--steps", type=int, default=150, help="steps of the training at all mask rates")
    parser.add_argument("--iterations", type=int, default=10, help="of the distillation")
    options = parser.parse_args()
    options.folder.mkdir(parents=True, exist_ok=True)
    source, teacher, tuned, run = (options.folder / name for name in ("rxnfp", "teacher", "tuned", "run"))
    reactions = unpack(fetch(options.folder), source)
    di4c("convert", str(source), str(teacher), "--length", str(LENGTH), "--force")
    model = load(str(teacher))
    rows, sizes = encoded(model, reactions), (options.repeats, options.samples)
    summary = load(str(source)).load_report
    assert summary is not None
    report: dict[str, Any] = {"tensors": summary.summary, "reactions": len(rows)}
    report["published"] = measured(model, rows[1::2], *sizes)
    texts = own_writing(model, rows[::2], options.chains, 12)
    print(f"{len(texts)} texts of the model's own", flush=True)
    settings = [f"training.iterations={options.steps}", "training.batch=16", "training.optimizer.lr=3e-4"]
    settings += ["training.optimizer.warmup=20", "training.ema=0", "evaluate_every=50"]
    words = [*write_rows(texts, options.folder), "--out", str(tuned), "--force", *flags(settings)]
    di4c("pretrain", "--teacher", str(teacher), *words)
    report["tuned"] = measured(load(str(tuned)), rows[1::2], *sizes)
    settings = [f"training.iterations={options.iterations}", "method.latents=2", "training.batch=2"]
    settings += ["training.optimizer.warmup=2", "training.ema=0"]
    words = ["--data", "teacher", "--out", str(run), "--force", *flags(settings)]
    di4c("distill", "--teacher", str(tuned), *words)
    report["student"] = measured(load(str(run)), rows[1::2], *sizes)
    print(json.dumps(report))


if __name__ == "__main__":
    main()
