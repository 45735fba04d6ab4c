"""A real pretrained masked language model through di4c: the BERT of chemical reactions inside PyPI's `rxnfp` 0.1.0.

    python -m tools.rxnfp FOLDER

fetches the wheels of rxnfp (the model, MIT) and rxnmapper (real reactions in its tests, MIT) without dependencies,
loads the legacy pickle through the BERT format, fills masks of real reactions, samples from nothing but masks, and
distils the model by the real command without data. The last line is one JSON object.
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
from pathlib import Path
from typing import Any

import torch

from di4c_cli import load
from di4c_cli.model import Model

WHEELS = ("rxnfp==0.1.0", "rxnmapper==0.4.3")
MODEL = "rxnfp/models/transformers/bert_pretrained"
ATOMS = r"\[[^\]]+\]|Br|Cl|>>|%[0-9][0-9]|[A-Za-z0-9().=#+\-\\/:~@?*$]"
"""Tokens of a reaction string: bracketed atoms, two-letter atoms, the arrow, ring numbers, single characters."""
REACTION = re.compile(r"[\w@+\-\[\]()\\/=#%.~]{8,300}>>[\w@+\-\[\]()\\/=#%.~]{5,200}")
LENGTH = 128
SHARES = (0.15, 0.5, 0.9, 1.0)


def fetch(folder: Path) -> list[Path]:
    """The wheels, downloaded if they are not there."""
    if not list(folder.glob("rxnfp-*.whl")) or not list(folder.glob("rxnmapper-*.whl")):
        words = [sys.executable, "-m", "pip", "download", "-q", "--no-deps", "-d", str(folder), *WHEELS]
        subprocess.run(words, check=True)
    return sorted(folder.glob("*.whl"))


def unpack(wheels: list[Path], folder: Path) -> list[str]:
    """Write the model's folder with a tokenizer.json; gives the real reactions of both packages."""
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
    tree = {"version": "1.0", "pre_tokenizer": cut, "decoder": {"type": "Fuse"}, "model": model}
    (folder / "tokenizer.json").write_text(json.dumps(tree))
    return sorted(text for text in found if ":" not in text)


def encoded(model: Model, reactions: list[str]) -> list[list[int]]:
    """Reactions between [CLS] and [SEP], without those that the vocabulary does not cover."""
    tokenizer: Any = model.codec.tokenizer  # type: ignore[attr-defined]
    first, last, unknown = (tokenizer.token_to_id(token) for token in ("[CLS]", "[SEP]", "[UNK]"))
    rows = [[first, *model.codec.encode(text), last] for text in reactions]
    return [row for row in rows if unknown not in row and len(row) <= LENGTH]


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
    """One arrow between two sides whose brackets match; no chemistry is checked."""
    sides = text.replace("[CLS]", "").replace("[SEP]", "").split(">>")
    if len(sides) != 2 or not all(sides):
        return False
    for side in sides:
        depth = 0
        for letter in side:
            depth += {"(": 1, ")": -1}.get(letter, 0)
            if depth < 0:
                return False
        if depth or side.count("[") != side.count("]"):
            return False
    return True


def from_masks(model: Model, count: int, length: int, steps: int) -> dict[str, Any]:
    """Samples at t = 1: all of the inner positions are masks."""
    tokenizer: Any = model.codec.tokenizer  # type: ignore[attr-defined]
    given = torch.full((count, length), -1)
    given[:, 0], given[:, -1] = tokenizer.token_to_id("[CLS]"), tokenizer.token_to_id("[SEP]")
    texts = model.decode(model.sample(count, steps=steps, given=given))
    return {"well_formed": sum(map(well_formed, texts)) / count, "example": texts[0]}


def di4c(*words: str) -> None:
    """The real command."""
    print("di4c", *words, flush=True)
    subprocess.run([sys.executable, "-m", "di4c_cli", *words], check=True)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("folder", type=Path)
    parser.add_argument("--repeats", type=int, default=10, help="random masks for each reaction")
    parser.add_argument("--samples", type=int, default=32)
    parser.add_argument("--iterations", type=int, default=10)
    options = parser.parse_args()
    options.folder.mkdir(parents=True, exist_ok=True)
    source, teacher, run = (options.folder / name for name in ("rxnfp", "teacher", "run"))
    reactions = unpack(fetch(options.folder), source)
    di4c("convert", str(source), str(teacher), "--length", str(LENGTH), "--force")
    model = load(str(source))
    assert model.load_report is not None
    rows = encoded(model, reactions)
    report: dict[str, Any] = {"tensors": model.load_report.summary, "reactions": len(rows), "fill": {}, "samples": {}}
    for share in SHARES:
        report["fill"][share] = fill(model, rows, share, options.repeats)
        print(f"masked {share:.0%}:", report["fill"][share], flush=True)
    for steps in (1, 8, 62):
        report["samples"][steps] = from_masks(load(str(teacher)), options.samples, 64, steps)
        print(f"{steps} steps from masks:", report["samples"][steps], flush=True)
    settings = [f"training.iterations={options.iterations}", "method.latents=2", "training.batch=2"]
    settings += ["training.optimizer.warmup=2", "training.ema=0"]
    flags = [word for setting in settings for word in ("--set", setting)]
    di4c("distill", "--teacher", str(teacher), "--data", "teacher", "--out", str(run), *flags)
    student = load(str(run))
    report["student"] = {"fill": fill(student, rows, 0.15, 2), "samples": from_masks(student, options.samples, 64, 8)}
    print(json.dumps(report))


if __name__ == "__main__":
    main()
