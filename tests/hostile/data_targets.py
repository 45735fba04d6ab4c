"""Fuzz targets that read data: corpora, arrays, images, statistics, tokenizers, prompts and shards."""

from __future__ import annotations

import random
from pathlib import Path

from tests.hostile import bombs
from tests.hostile.damage import SHORT, Case, copy, damage, link
from tests.hostile.mutations import mutate


def dataset(root: Path, place: Path, rng: random.Random) -> Case:
    """A stranger's corpus, arrays or images as training data."""
    kinds = {
        "text": (
            "corpus.txt",
            "corpus.jsonl",
            "corpus.txt.gz",
            "corpus.jsonl.gz",
            "corpus.parquet",
            "tokens.npy",
            "tokens.bin",
        ),
        "digits": ("digits.npz", "digits-packed.npz", "digits.npy", "grey"),
        "pixels": ("colours.npz", "colour", "cifar-binary", "cifar-sheets"),
        "codes": ("large",),
    }
    model = rng.choice(["text", "text", "digits", "pixels", "codes"])
    name = rng.choice(kinds[model])
    path = copy(root / "data" / name, place / "in" / name)
    copy(root / "models" / model, place / "in" / "model")
    story = damage(path, rng) if rng.random() < 0.8 else bombs.odd(path, rng)
    more = rng.choice([[], [], ["--dry-run"]])
    chosen = "di4c/pixels" if model == "pixels" else "di4c/digits"
    words = ["distill", "--teacher", "in/model", "--recipe", chosen, "--data", f"in/{name}", *SHORT, "--latents", "2"]
    return Case([*words, "--out", "out/r", *more], f"{name}: {story}")


def samples(root: Path, place: Path, rng: random.Random) -> Case:
    """A stranger's samples, reference images, texts and statistics."""
    if rng.random() < 0.3:
        return _texts(root, place, rng)
    name = rng.choice(["digits.npz", "digits.npy", "grey", "digits-packed.npz"])
    reference = rng.choice(["statistics.npz", "statistics.npz", "grey", "digits.npz"])
    one = copy(root / "data" / name, place / "in" / "samples" / name)
    other = copy(root / "data" / reference, place / "in" / "reference" / reference)
    chosen = rng.choice([one, other])
    story = damage(chosen, rng) if rng.random() < 0.6 else bombs.odd(chosen, rng)
    words = [
        "eval",
        "--samples",
        f"in/samples/{name}",
        "--reference",
        f"in/reference/{reference}",
        "-n",
        "4",
        "--out",
        "out/e",
    ]
    return Case(words, f"{chosen.name}: {story}")


def _texts(root: Path, place: Path, rng: random.Random) -> Case:
    """Texts that a judge compares with reference texts."""
    names = [rng.choice(["texts.txt", "texts.jsonl"]) for _ in range(2)]
    paths = [copy(root / "data" / name, place / "in" / part / name) for part, name in zip("sr", names, strict=True)]
    chosen = rng.choice(paths)
    story = damage(chosen, rng) if rng.random() < 0.5 else bombs.odd(chosen, rng)
    link(root / "judge", place / "in" / "judge")
    words = ["eval", "--samples", f"in/s/{names[0]}", "--reference", f"in/r/{names[1]}", "--judge", "in/judge"]
    return Case([*words, "-n", rng.choice(["1", "3", "50"]), "--out", "out/e"], f"{chosen.name}: {story}")


def tokenizer(root: Path, place: Path, rng: random.Random) -> Case:
    """A stranger's tokenizer.json."""
    name = rng.choice(["words", "pairs", "unigram", "pieces"])
    copy(root / "models" / "text", place / "in" / "model")
    path = copy(root / "models" / "tokenizers" / f"{name}.json", place / "in" / "model" / "words.json")
    story = mutate(path, rng) if rng.random() < 0.6 else bombs.tokenizer(path, rng)
    copy(root / "data" / "corpus.txt", place / "in" / "corpus.txt")
    copy(root / "data" / "infill.txt", place / "in" / "infill.txt")
    words = rng.choice(
        [
            ["sample", "--teacher", "in/model", "-n", "2", "--steps", "1"],
            ["sample", "--teacher", "in/model", "-n", "1", "--steps", "1", "--prompt", "a b"],
            ["sample", "--teacher", "in/model", "-n", "1", "--steps", "1", "--infill", "in/infill.txt"],
            ["sample", "--teacher", "in/model", "-n", "1", "--steps", "2", "--show-steps"],
            ["convert", "in/sdtt", "out/model", "--tokenizer", "in/model/words.json"],
            [
                "distill",
                "--teacher",
                "in/model",
                "--recipe",
                "di4c/digits",
                "--data",
                "in/corpus.txt",
                *SHORT,
                "--out",
                "out/r",
            ],
        ]
    )
    if words[0] == "convert":
        copy(root / "models" / "sdtt", place / "in" / "sdtt")
    return Case(words, f"{name}: {story}")


def prompts(root: Path, place: Path, rng: random.Random) -> Case:
    """Prompts, texts to fill in, and shards of an interrupted `sample`."""
    way = rng.choice(["--prompt-file", "--infill", "--prompts", "shards"])
    copy(root / "models" / "text", place / "in" / "text")
    if way == "shards":
        copy(root / "models" / "digits", place / "in" / "digits")
        story = damage(copy(root / "shards", place / "in" / "shards"), rng, ".json")
        words = ["sample", "--teacher", "in/digits", "-n", "4", "--steps", "1", "--out", "in/shards"]
        words += ["--processes", "2"] if rng.random() < 0.1 else []
        return Case(words, story, replaced=("in/shards",))
    name = {"--prompt-file": "prompt.txt", "--infill": "infill.txt"}.get(way) or rng.choice(
        ["prompts.txt", "prompts.npy"]
    )
    path = copy(root / "data" / name, place / "in" / name)
    story = damage(path, rng) if rng.random() < 0.6 else bombs.odd(path, rng)
    if way == "--prompts":
        words = [
            "eval",
            "--protocol",
            "owt-cond",
            "--teacher",
            "in/text",
            "--student",
            "in/text",
            "--model",
            "di4c-d=in/text",
        ]
        link(root / "judge", place / "in" / "judge")
        words += [way, f"in/{name}", "--judge", "in/judge", "-n", "5", "--out", "out/e"]
    else:
        words = ["sample", "--teacher", "in/text", "-n", "1", "--steps", "1", way, f"in/{name}"]
    return Case(words, story)
