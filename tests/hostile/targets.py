"""The fuzz targets: each makes one case from a generator, damaged copies of valid files and a command that reads them."""

from __future__ import annotations

import os
import random
import shutil
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from tests.hostile import bombs, grammar, hub_cases
from tests.hostile.mutations import mutate
from tests.hostile.originals import FOREIGN, OWN

SHORT = ["--iterations", "1", "--batch", "2"]
STOP_SECONDS = 8.0
"""Options may ask for hours of work: such a command is asked to stop, and must."""


@dataclass
class Case:
    """A command, what was done to its input, and what it may replace."""

    words: list[str]
    story: str
    stop_after: float | None = None
    prepare: Callable[[], Any] | None = None
    replaced: tuple[str, ...] = ()


Target = Callable[[Path, Path, random.Random], Case]


def _copy(source: Path, target: Path) -> Path:
    target.parent.mkdir(parents=True, exist_ok=True)
    return Path(shutil.copytree(source, target) if source.is_dir() else shutil.copy(source, target))


def _link(source: Path, target: Path) -> None:
    """The same files under another path, which is quicker than a copy; for cases that do not damage them."""
    target.parent.mkdir(parents=True, exist_ok=True)
    if source.is_dir():
        shutil.copytree(source, target, copy_function=os.link)
    else:
        os.link(source, target)


def _files(path: Path, *suffixes: str) -> list[Path]:
    found = sorted(p for p in path.rglob("*") if p.is_file() and not p.is_symlink()) if path.is_dir() else [path]
    return [p for p in found if (not suffixes or p.suffix in suffixes) and p.stat().st_size < 2**26]


def _damage(path: Path, rng: random.Random, *preferred: str) -> str:
    """Damage one or two files at a path; those with `preferred` endings three times of four."""
    story = []
    for _ in range(rng.choice([1, 1, 1, 2])):
        some = _files(path, *preferred) if preferred and rng.random() < 0.75 else []
        found = some or _files(path)
        if found:
            one = rng.choice(found)
            story.append(bombs.bomb(one, rng) if rng.random() < 0.12 else mutate(one, rng))
    return ", ".join(story)


def options(root: Path, place: Path, rng: random.Random) -> Case:
    """Every option of every command × the grammar of values; sometimes two at once."""
    pairs = grammar.grid()
    first = rng.choice(sorted({one.command for one, _ in pairs}, key=str) if rng.random() < 0.5 else [None])
    some = [pair for pair in pairs if first is None or pair[0].command == first]
    parameter = rng.choice(sorted({one.name for one, _ in some}))
    given = [rng.choice([pair for pair in some if pair[0].name == parameter])]
    if rng.random() < 0.3:
        given.append(rng.choice([pair for pair in pairs if pair[0].command == given[0][0].command]))
    return option_case(root, place, given, rng)


def option_case(root: Path, place: Path, given: list[tuple[grammar.Parameter, str]], rng: random.Random) -> Case:
    """A case with these parameters."""
    for source, target in (
        *(
            ("models/digits", "digits"),
            ("models/text", "text"),
            ("models/sdtt", "sdtt"),
            ("run", "run"),
            ("data", "data"),
        ),
        *(("evaluation", "evaluation"), ("shards", "shards"), ("recipes/0-tiny-digits.yaml", "recipe.yaml")),
        *(("recipes/3-ablations-alpha.yaml", "sweep.yaml"), ("models/tokenizers/words.json", "words.json")),
    ):
        _link(root / source, place / "in" / target)
    (place / "in" / "notes.txt").write_text("keep this\n")
    grammar.make_special(place)
    words = grammar.line(given, rng)
    # a value may name an input as the output; whether it is replaced is the command's documented behaviour
    outputs = ("out", "--out", "target")
    named = tuple(
        value for parameter, value in given if parameter.name in outputs and value and not value.startswith("/")
    )
    prefixes = tuple(f"{Path(name)}" for name in named if str(Path(name)) not in (".", "..", "in"))
    return Case(words, "options", STOP_SECONDS, None, prefixes)


def published(root: Path, place: Path, rng: random.Random) -> Case:
    """A checkpoint in a published layout."""
    name = rng.choice(sorted(FOREIGN))
    folder = _copy(root / "models" / name, place / "in" / "model")
    words = ["convert", "in/model", "out/model", *FOREIGN[name]]
    if name == "maskgit" and rng.random() < 0.5:
        vqgan = _copy(root / "models" / "vqgan", place / "in" / "vqgan")
        return Case([*words, "--vqgan", "in/vqgan"], _damage(vqgan, rng, ".yaml"))
    return Case(words, _damage(folder, rng, ".json", ".yaml"))


def folder(root: Path, place: Path, rng: random.Random) -> Case:
    """A stranger's model folder."""
    name = rng.choice(OWN)
    _copy(root / "models" / name, place / "in" / "model")
    story = _damage(place / "in" / "model", rng, ".json")
    words = rng.choice(
        [
            ["sample", "--teacher", "in/model", "-n", "1", "--steps", "1", "--out", f"out/a.{_ending(name)}"],
            ["sample", "--student", "in/model", "-n", "1", "--json"],
            ["convert", "in/model", "out/model"],
            ["convert", "in/model", "out/model", "--verbose"],
            ["eval", "--teacher", "in/model", "--steps", "1", "-n", "2", "--out", "out/e"],
            ["distill", "--teacher", "in/model", "--dry-run", "--data", "teacher", *SHORT, "--out", "out/r"],
            [
                "distill",
                "--teacher",
                "in/model",
                "--recipe",
                "di4c/tiny-digits",
                "--data",
                "teacher",
                *SHORT,
                "--out",
                "out/r",
            ],
            ["push", "in/model", "me/model"],
        ]
    )
    return Case(words, f"{name}: {story}", prepare=hub_cases.serve({}) if words[0] == "push" else None)


def _ending(name: str) -> str:
    return "txt" if name in ("text", "student") else "png"


def recipe(root: Path, place: Path, rng: random.Random) -> Case:
    """A stranger's recipe, or configuration of Accelerate."""
    path = _copy(rng.choice(_files(root / "recipes")), place / "in" / "recipe.yaml")
    kind = path.read_text()
    _copy(root / "models" / "digits", place / "in" / "digits")
    story = mutate(path, rng)
    teacher = ["--teacher", "in/digits"]
    if "compute_environment" in kind or "distributed_type" in kind:
        chosen = ["--recipe", "di4c/tiny-digits", "--accelerate-config", "in/recipe.yaml"]
        words = [
            "distill",
            *teacher,
            *chosen,
            *SHORT,
            "--latents",
            "2",
            "--out",
            "out/r",
            *rng.choice([["--dry-run"], []]),
        ]
    elif "kind: pretrain" in kind:
        words = ["pretrain", "--recipe", "in/recipe.yaml", "--iterations", "1", "--out", "out/p"]
    elif "kind: sweep" in kind:
        words = ["sweep", "in/recipe.yaml", *teacher, "--iterations", "1", "--samples", "2", "--out", "out/s"]
    else:
        more = rng.choice([["--dry-run"], []])
        words = ["distill", *teacher, "--recipe", "in/recipe.yaml", *SHORT, "--out", "out/r", *more]
    if rng.random() < 0.1:
        words = ["recipes", "show", "in/recipe.yaml"]
    return Case(words, story, STOP_SECONDS)


def run(root: Path, place: Path, rng: random.Random) -> Case:
    """A stranger's run folder: sampled, evaluated, reported, resumed, pushed."""
    path = _copy(root / "run", place / "in" / "run")
    _copy(root / "models" / "digits", place / "in" / "digits")
    text = (path / "recipe.yaml").read_text().replace(str(root / "models" / "digits"), "in/digits")
    (path / "recipe.yaml").write_text(text)
    story = _damage(path, rng, ".json", ".jsonl", ".yaml")
    more = ["--batch", "2", "--latents", "2", "--set", "training.checkpoint_every=1"]
    resume = [
        "distill",
        "--teacher",
        "in/digits",
        "--recipe",
        "di4c/tiny-digits",
        "--iterations",
        "2",
        *more,
        "--out",
        "in/run",
    ]
    words = rng.choice(
        [
            ["sample", "--student", "in/run", "-n", "1", "--steps", "1", "--out", "out/a.png"],
            ["eval", "--student", "in/run", "--teacher", "in/digits", "--steps", "1", "-n", "2", "--out", "out/e"],
            ["report", "in/run", "--out", "out/page.html"],
            resume,
            resume,
            ["push", "in/run", "me/model"],
            ["convert", "in/run", "out/model"],
        ]
    )
    prepare = hub_cases.serve({}) if words[0] == "push" else None
    return Case(words, story, prepare=prepare, replaced=("in/run",) if words is resume else ())


def result(root: Path, place: Path, rng: random.Random) -> Case:
    """A stranger's results.json with its pictures, and the parts of an interrupted evaluation."""
    path = _copy(root / "run" / "evaluation", place / "in" / "e")
    _copy(root / "evaluation", place / "in" / "other")
    story = _damage(path, rng, ".json")
    again = ["eval", "--teacher", "in/digits", "--steps", "1,2", "-n", "3", "--out", "in/e"]
    words = rng.choice(
        [
            ["report", "in/e", "--out", "out/page.html"],
            ["report", "in/e/results.json", "--out", "out/page.html"],
            ["compare", "in/e", "in/other"],
            ["compare", "in/other", "in/e", "--json"],
            ["compare", "in/e", "in/e"],
            again,
        ]
    )
    if words is again:
        _copy(root / "models" / "digits", place / "in" / "digits")
        story = _damage(path / "parts", rng)
    return Case(words, story, replaced=("in/e",) if words is again else ())


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
    path = _copy(root / "data" / name, place / "in" / name)
    _copy(root / "models" / model, place / "in" / "model")
    story = _damage(path, rng) if rng.random() < 0.8 else bombs.odd(path, rng)
    more = rng.choice([[], [], ["--dry-run"]])
    chosen = "di4c/tiny-pixels" if model == "pixels" else "di4c/tiny-digits"
    words = ["distill", "--teacher", "in/model", "--recipe", chosen, "--data", f"in/{name}", *SHORT, "--latents", "2"]
    return Case([*words, "--out", "out/r", *more], f"{name}: {story}")


def samples(root: Path, place: Path, rng: random.Random) -> Case:
    """A stranger's samples, reference images and reference statistics."""
    name = rng.choice(["digits.npz", "digits.npy", "grey", "digits-packed.npz"])
    reference = rng.choice(["statistics.npz", "statistics.npz", "grey", "digits.npz"])
    one = _copy(root / "data" / name, place / "in" / "samples" / name)
    other = _copy(root / "data" / reference, place / "in" / "reference" / reference)
    chosen = rng.choice([one, other])
    story = _damage(chosen, rng) if rng.random() < 0.6 else bombs.odd(chosen, rng)
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


def tokenizer(root: Path, place: Path, rng: random.Random) -> Case:
    """A stranger's tokenizer.json."""
    name = rng.choice(["words", "pairs", "unigram", "pieces"])
    _copy(root / "models" / "text", place / "in" / "model")
    path = _copy(root / "models" / "tokenizers" / f"{name}.json", place / "in" / "model" / "words.json")
    story = mutate(path, rng) if rng.random() < 0.6 else bombs.tokenizer(path, rng)
    _copy(root / "data" / "corpus.txt", place / "in" / "corpus.txt")
    _copy(root / "data" / "infill.txt", place / "in" / "infill.txt")
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
                "di4c/tiny-digits",
                "--data",
                "in/corpus.txt",
                *SHORT,
                "--out",
                "out/r",
            ],
        ]
    )
    if words[0] == "convert":
        _copy(root / "models" / "sdtt", place / "in" / "sdtt")
    return Case(words, f"{name}: {story}")


def prompts(root: Path, place: Path, rng: random.Random) -> Case:
    """Prompts, texts to fill in, and shards of an interrupted `sample`."""
    way = rng.choice(["--prompt-file", "--infill", "--prompts", "shards"])
    _copy(root / "models" / "text", place / "in" / "text")
    if way == "shards":
        _copy(root / "models" / "digits", place / "in" / "digits")
        story = _damage(_copy(root / "shards", place / "in" / "shards"), rng, ".json")
        words = ["sample", "--teacher", "in/digits", "-n", "4", "--steps", "1", "--out", "in/shards"]
        return Case(words, story, replaced=("in/shards",))
    name = {"--prompt-file": "prompt.txt", "--infill": "infill.txt"}.get(way) or rng.choice(
        ["prompts.txt", "prompts.npy"]
    )
    path = _copy(root / "data" / name, place / "in" / name)
    story = _damage(path, rng) if rng.random() < 0.6 else bombs.odd(path, rng)
    if way == "--prompts":
        words = ["eval", "--teacher", "in/text", "--steps", "1", "-n", "2", way, f"in/{name}", "--out", "out/e"]
    else:
        words = ["sample", "--teacher", "in/text", "-n", "1", "--steps", "1", way, f"in/{name}"]
    return Case(words, story)


def hub(root: Path, place: Path, rng: random.Random) -> Case:
    """A stranger's Hub repository, and an endpoint that misbehaves."""
    name = rng.choice(["text", "codes", "sdtt", "digits", "student"])
    copy = _copy(root / "models" / name, place / "in" / "repository")
    story = _damage(copy, rng, ".json") if rng.random() < 0.7 else "intact"
    fault = hub_cases.fault(rng) if rng.random() < 0.5 or story == "intact" else None
    words = rng.choice(
        [
            ["convert", "me/model", "out/model"],
            ["sample", "--student", "me/model", "-n", "1", "--steps", "1", "--out", f"out/a.{_ending(name)}"],
            ["sample", "--teacher", "me/model@main", "-n", "1", "--steps", "1"],
            ["push", "in/own", "me/model"],
        ]
    )
    if words[0] == "push":
        _copy(root / "models" / "digits", place / "in" / "own")
    prepare = hub_cases.serve({"me/model": copy}, fault)
    return Case(words, f"{story}; {fault}", prepare=prepare)


TARGETS: dict[str, tuple[Target, int]] = {
    "options": (options, 10),
    "published checkpoint": (published, 4),
    "model folder": (folder, 5),
    "Hub repository": (hub, 3),
    "recipe": (recipe, 4),
    "run": (run, 4),
    "result": (result, 3),
    "dataset": (dataset, 5),
    "samples and statistics": (samples, 3),
    "tokenizer": (tokenizer, 3),
    "prompts and shards": (prompts, 3),
}
"""Each with its share of the cases."""
