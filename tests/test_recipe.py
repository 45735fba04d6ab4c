"""Recipes: shipped ones are valid, overrides reach every key, mistakes are named."""

from __future__ import annotations

from pathlib import Path

import pytest

from di4c_cli import recipe_file
from di4c_cli.errors import UserError
from di4c_cli.recipe import Recipe


@pytest.mark.parametrize("name", recipe_file.names())
def test_every_shipped_recipe_is_valid_and_documented(name: str) -> None:
    kind = recipe_file.kind_of(name)
    text = recipe_file.find(name).read_text(encoding="utf-8")
    assert text.startswith("# di4c "), "the header starts with the command that runs it"
    assert recipe_file.raw(name)["summary"]
    if kind == "distill":
        assert recipe_file.read(name).name == name.rsplit("/", 1)[-1] or recipe_file.read(name).name == name
    elif kind == "pretrain":
        recipe_file.read_pretrain(name)


def test_a_resolved_recipe_reads_back_equal(tmp_path: Path) -> None:
    recipe = recipe_file.read(
        "tiny-digits", {"objective.alpha.kind": "linear", "training.optimizer.lr": 1e-5}
    )
    path = tmp_path / "recipe.yaml"
    path.write_text(recipe_file.dump(recipe))
    assert recipe_file.read(str(path)) == recipe
    assert recipe.objective.alpha.kind == "linear" and recipe.training.optimizer.lr == 1e-5


@pytest.mark.parametrize(
    ("key", "value", "words"),
    [
        ("objective.alfa.kind", "zero", ["objective.alfa.kind", "'alpha'"]),
        ("objectiv.latents", 3, ["objectiv", "'objective'"]),
        ("objective.latents", 0, ["objective.latents", "greater than or equal to 1"]),
        ("objective.alpha.kind", "cubic", ["objective.alpha.kind", "sigmoid"]),
        ("objective.step", {"low": 0.9, "high": 0.1}, ["objective.step", "above high"]),
        ("latent.distribution", "uniform", ["objective.posterior", "normal"]),
        ("training.ema", 1.0, ["training.ema", "less than 1"]),
        ("latent.dim.x", 1, ["latent.dim.x"]),
        ("training.optimizer.clip", 0, ["training.optimizer.clip", "greater than 0"]),
        ("training.optimizer.clip", -1.0, ["training.optimizer.clip", "greater than 0"]),
        ("training.optimizer.betas", [0.9, 1], ["training.optimizer.betas.1", "less than 1"]),
        ("training.optimizer.lr", float("inf"), ["training.optimizer.lr", "finite"]),
        ("objective.distil_weight", -1, ["objective.distil_weight"]),
        ("objective.posterior.rise", {"low": 0.6, "high": 0.5}, ["objective.posterior.rise", "above high"]),
        ("objective.step", {"low": 0, "high": 0.1}, ["objective.step.low", "greater than 0"]),
    ],
)
def test_mistakes_are_named(key: str, value: object, words: list[str]) -> None:
    with pytest.raises(UserError) as caught:
        recipe_file.read("tiny-digits", {key: value})
    assert all(word in str(caught.value) for word in words), str(caught.value)
    assert "Value error" not in str(caught.value) and "''" not in str(caught.value)


@pytest.mark.parametrize(
    "said", [{"data": "teacher"}, {"objective.reference": "teacher"}, {"data": "teacher", "seed": 3}]
)
def test_no_data_and_the_teachers_trajectory_are_one_wish(said: dict[str, object]) -> None:
    recipe = recipe_file.read("paper/tiny-digits", said)
    assert (recipe.data, recipe.objective.reference) == ("teacher", "teacher")
    assert recipe_file.read("paper/tiny-digits").objective.reference == "data"


def test_unknown_keys_in_a_file_are_named_with_the_nearest(tmp_path: Path) -> None:
    path = tmp_path / "mine.yaml"
    path.write_text("name: x\nsummary: y\nteacher: tiny-digits\nobjective: {latent: 4}\n")
    with pytest.raises(UserError, match=r"objective\.latent'.*Did you mean 'latents'"):
        recipe_file.read(str(path))


def test_broken_files_are_told_in_one_sentence(tmp_path: Path) -> None:
    path = tmp_path / "mine.yaml"
    for text, word in (("a: [1", "not readable YAML"), ("- 1", "holds no settings")):
        path.write_text(text)
        with pytest.raises(UserError, match=word):
            recipe_file.read(str(path))
    with pytest.raises(UserError, match="no recipe file"):
        recipe_file.find(str(tmp_path / "none.yaml"))
    with pytest.raises(UserError, match="Did you mean 'tiny-digits'"):
        recipe_file.find("tiny-digit")


def test_assignments_are_yaml_values() -> None:
    assert recipe_file.parse_assignment("a.b=1e-5") == ("a.b", 1e-5)
    assert recipe_file.parse_assignment("a=[1, 2]") == ("a", [1, 2])
    assert recipe_file.parse_assignment("a=null") == ("a", None)
    for text in ("novalue", "=3", "a=[1"):
        with pytest.raises(UserError):
            recipe_file.parse_assignment(text)


def test_no_torch_is_needed_to_read_recipes() -> None:
    import subprocess
    import sys

    code = "import sys, di4c_cli.recipe_file as r; r.read('tiny-digits'); sys.exit('torch' in sys.modules)"
    assert subprocess.run([sys.executable, "-c", code], check=False).returncode == 0


def test_defaults_are_the_schema_s() -> None:
    assert Recipe(name="a", summary="b", teacher="c").training.ema == 0.9999


def test_no_clipping_is_said_by_none() -> None:
    recipe = recipe_file.read("tiny-digits", {"training.optimizer.clip": None})
    assert recipe.training.optimizer.clip is None
