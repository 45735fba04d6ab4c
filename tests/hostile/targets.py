"""The fuzz targets: each makes a case, which is damaged copies of valid files and a command that reads them."""

from __future__ import annotations

import json
import random
from pathlib import Path

import yaml

from tests.hostile import grammar, hub_cases, tensors
from tests.hostile.damage import SHORT, STOP_SECONDS, Case, Target, copy, damage, files_of, link
from tests.hostile.data_targets import dataset, prompts, samples, tokenizer
from tests.hostile.mutations import mutate
from tests.hostile.originals import FOREIGN, OWN, VARIANTS
from tests.hostile.schema_values import set_limit


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
            ("models/llada", "llada"),
            ("models/adapter", "adapter"),
            ("judge", "judge"),
            ("run", "run"),
            ("data", "data"),
        ),
        *(("evaluation", "evaluation"), ("shards", "shards"), ("recipes/0-digits.yaml", "recipe.yaml")),
        *(("recipes/3-ablations-alpha.yaml", "sweep.yaml"), ("models/tokenizers/words.json", "words.json")),
    ):
        link(root / source, place / "in" / target)
    (place / "in" / "notes.txt").write_text("keep this\n")
    grammar.make_special(place)
    words = grammar.line(given, rng)
    # a value may name an input as the output; whether it is replaced is the command's documented behaviour
    outputs = ("out", "--out", "target")
    named = tuple(
        value for parameter, value in given if parameter.name in outputs and value and not value.startswith("/")
    )
    paths = [Path(name) for name in named if str(Path(name)) not in (".", "..", "in")]
    prefixes = tuple(str(path) if path.parts[0] in ("in", "special") else path.parts[0] for path in paths)
    if any(str(path) == grammar.LINK for path in paths):
        prefixes += (grammar.LINKED,)
    if "in" in named:
        prefixes += ("in/theory.",)  # `di4c theory` writes its two files beside what a folder holds
    return Case(words, "options", STOP_SECONDS, None, prefixes)


def published(root: Path, place: Path, rng: random.Random) -> Case:
    """A checkpoint in a published layout."""
    name = rng.choice([*sorted(FOREIGN), *VARIANTS])
    folder = copy(root / "models" / name, place / "in" / "model")
    words = ["convert", "in/model", "out/model", *FOREIGN.get(name, [])]
    if name == "maskgit" and rng.random() < 0.5:
        vqgan = copy(root / "models" / "vqgan", place / "in" / "vqgan")
        return Case([*words, "--vqgan", "in/vqgan"], damage(vqgan, rng, ".yaml"), model="out/model")
    return Case(words, f"{name}: {damage(folder, rng)}", model="out/model")


def adapter(root: Path, place: Path, rng: random.Random) -> Case:
    """A stranger's adapter, of an embedded teacher or one named with --base, alone or inside its run."""
    inside = rng.random() < 0.5
    folder = copy(root / ("adapter-run" if inside else "models/adapter"), place / "in" / "model")
    way = rng.random()
    if way < 0.5:
        story = damage(folder, rng, ".json", ".yaml")
    elif way < 0.8:
        story = tensors.change_adapter(folder / "student" if inside else folder, rng)
    else:
        story = _other_teacher(folder, inside, rng)
    base = rng.choice([[], ["--base", "digits"], ["--base", "in/model"], ["--base", "digits-student"]])
    words = rng.choice(
        [
            ["convert", "in/model", "out/model", *base],
            ["convert", "in/model", "out/model", *base],
            ["sample", "--student", "in/model", "-n", "1", "--steps", "1", "--out", "out/a.png"],
            ["eval", "--student", "in/model", "--steps", "1", "-n", "2", "--out", "out/e"],
            ["distill", "--teacher", "in/model", "--recipe", "di4c/digits", *SHORT, "--out", "out/r"],
            ["push", "in/model", "me/model"],
        ]
    )
    prepare = hub_cases.serve({}) if words[0] == "push" else None
    return Case(words, story, prepare=prepare, model="out/model" if words[0] == "convert" else "")


def _other_teacher(folder: Path, inside: bool, rng: random.Random) -> str:
    """Another teacher in the adapter's history: itself, the folder around it, a name, a path that is not there."""
    student = folder / "student" if inside else folder
    names = ["student", "model", "in/model", "in/model/student", "digits-student", "words", "me/model", "", ".."]
    name = rng.choice(names)
    tree = json.loads((student / "config.json").read_text())
    tree["provenance"] |= {"teacher": Path(name).name if rng.random() < 0.7 else name}
    if rng.random() < 0.7:
        tree["provenance"]["base_digest"] = rng.choice([None, 0, "", "f" * 64, []])
    (student / "config.json").write_text(json.dumps(tree))
    path = folder / "recipe.yaml"
    recipe = yaml.safe_load(path.read_text()) if inside else {}
    path.write_text(yaml.safe_dump(recipe | {"teacher": name}))
    return f"teacher {name!r}"


def folder(root: Path, place: Path, rng: random.Random) -> Case:
    """A stranger's model folder."""
    name = rng.choice(OWN)
    copy(root / "models" / name, place / "in" / "model")
    story = damage(place / "in" / "model", rng, ".json")
    words = rng.choice(
        [
            ["sample", "--teacher", "in/model", "-n", "1", "--steps", "1", "--out", f"out/a.{_ending(name)}"],
            ["sample", "--student", "in/model", "-n", "1", "--json"],
            ["convert", "in/model", "out/model"],
            ["convert", "in/model", "out/model", "--verbose"],
            ["eval", "--teacher", "in/model", "--steps", "1", "-n", "2", "--out", "out/e", *_processes(rng)],
            ["distill", "--teacher", "in/model", "--dry-run", "--data", "teacher", *SHORT, "--out", "out/r"],
            [
                "distill",
                "--teacher",
                "in/model",
                "--recipe",
                "di4c/digits",
                "--data",
                "teacher",
                *SHORT,
                "--out",
                "out/r",
            ],
            ["push", "in/model", "me/model"],
        ]
    )
    if words[0] == "eval" and _ending(name) == "txt":
        link(root / "judge", place / "in" / "judge")
        words += ["--judge", "in/judge"]
    prepare = hub_cases.serve({}) if words[0] == "push" else None
    return Case(words, f"{name}: {story}", prepare=prepare, model="out/model" if words[0] == "convert" else "")


def _ending(name: str) -> str:
    return "png" if name in ("digits", "codes", "pixels", "adapter") else "txt"


def recipe(root: Path, place: Path, rng: random.Random) -> Case:
    """A stranger's recipe, or configuration of Accelerate."""
    path = copy(rng.choice(files_of(root / "recipes")), place / "in" / "recipe.yaml")
    kind = path.read_text()
    copy(root / "models" / "digits", place / "in" / "digits")
    story = _other_recipe(path, rng)
    teacher = ["--teacher", "in/digits"]
    if "compute_environment" in kind or "distributed_type" in kind:
        chosen = ["--recipe", "di4c/digits", "--accelerate-config", "in/recipe.yaml"]
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


def _processes(rng: random.Random) -> list[str]:
    """Sometimes two processes, which take a while to start."""
    return ["--processes", "2"] if rng.random() < 0.05 else []


def _other_recipe(path: Path, rng: random.Random) -> str:
    """Values at their limits, or any change of the file."""
    tree = yaml.safe_load(path.read_text())
    if "kind" not in tree or rng.random() < 0.5:
        return mutate(path, rng)
    story = set_limit(tree, rng)
    path.write_text(yaml.safe_dump(tree))
    return story


def run(root: Path, place: Path, rng: random.Random) -> Case:
    """A stranger's run folder: sampled, evaluated, reported, resumed, pushed."""
    path = copy(root / "run", place / "in" / "run")
    copy(root / "models" / "digits", place / "in" / "digits")
    text = (path / "recipe.yaml").read_text().replace(str(root / "models" / "digits"), "in/digits")
    (path / "recipe.yaml").write_text(text)
    story = damage(path, rng, ".json", ".jsonl", ".yaml")
    more = ["--batch", "2", "--latents", "2", "--set", "training.checkpoint_every=1"]
    resume = [
        "distill",
        "--teacher",
        "in/digits",
        "--recipe",
        "di4c/digits",
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
    path = copy(root / "run" / "evaluation", place / "in" / "e")
    copy(root / "evaluation", place / "in" / "other")
    story = damage(path, rng, ".json")
    again = ["eval", "--teacher", "in/digits", "--steps", "1,2", "-n", "3", "--out", "in/e", *_processes(rng)]
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
        copy(root / "models" / "digits", place / "in" / "digits")
        story = damage(path / "parts", rng)
    return Case(words, story, replaced=("in/e",) if words is again else ())


def hub(root: Path, place: Path, rng: random.Random) -> Case:
    """A stranger's Hub repository, and an endpoint that misbehaves."""
    name = rng.choice(["text", "codes", "sdtt", "digits", "student", "shards", "pickled-shards", "adapter", "llama"])
    repository = copy(root / "models" / name, place / "in" / "repository")
    story = damage(repository, rng, ".json") if rng.random() < 0.7 else "intact"
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
        copy(root / "models" / "digits", place / "in" / "own")
    prepare = hub_cases.serve({"me/model": repository}, fault)
    return Case(words, f"{story}; {fault}", prepare=prepare)


TARGETS: dict[str, tuple[Target, int]] = {
    "options": (options, 10),
    "published checkpoint": (published, 6),
    "model folder": (folder, 5),
    "adapter": (adapter, 3),
    "Hub repository": (hub, 3),
    "recipe": (recipe, 5),
    "run": (run, 4),
    "result": (result, 3),
    "dataset": (dataset, 5),
    "samples and statistics": (samples, 3),
    "tokenizer": (tokenizer, 3),
    "prompts and shards": (prompts, 3),
}
"""Each with its share of the cases."""
