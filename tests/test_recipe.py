"""Recipes: shipped ones are valid, overrides reach every key, mistakes are named."""

from __future__ import annotations

from pathlib import Path

import pytest
import yaml

from di4c_cli import recipe_file
from di4c_cli.errors import UserError
from di4c_cli.methods import METHODS, Di4CConfig, MomentMatchingConfig, SDTTConfig, VariationalConfig, implementation
from di4c_cli.recipe import Recipe


@pytest.mark.parametrize("name", recipe_file.names())
def test_shipped_recipes_are_all_valid_and_documented(name: str) -> None:
    kind = recipe_file.kind_of(name)
    text = recipe_file.find(name).read_text(encoding="utf-8")
    assert text.startswith("# di4c "), "the header starts with the command that runs it"
    assert recipe_file.raw(name)["summary"]
    if kind == "distill":
        assert recipe_file.read(name).name == name.rsplit("/", 1)[-1] or recipe_file.read(name).name == name
    elif kind == "pretrain":
        recipe_file.read_pretrain(name)


@pytest.mark.parametrize("name", ["di4c/digits", "digits"])
def test_dump_of_a_recipe_reads_back_equal(name: str, tmp_path: Path) -> None:
    path, recipe = tmp_path / "recipe.yaml", recipe_file.read(name)
    path.write_text(recipe_file.dump(recipe))
    assert recipe_file.read(str(path)) == recipe
    assert (recipe.method.name == "di4c") == name.startswith("di4c/")


def test_dump_keeps_overrides(tmp_path: Path) -> None:
    recipe = recipe_file.read("di4c/digits", {"method.alpha.kind": "linear", "training.optimizer.lr": 1e-5})
    path = tmp_path / "recipe.yaml"
    path.write_text(recipe_file.dump(recipe))
    assert recipe_file.read(str(path)) == recipe
    assert isinstance(recipe.method, Di4CConfig)
    assert recipe.method.alpha.kind == "linear" and recipe.training.optimizer.lr == 1e-5


@pytest.mark.parametrize(
    ("key", "value", "words"),
    [
        ("method.alfa.kind", "zero", ["method.alfa.kind", "'alpha'"]),
        ("methd.latents", 3, ["methd", "'method'"]),
        ("method.latents", 0, ["method.latents", "greater than or equal to 1"]),
        ("method.alpha.kind", "cubic", ["method.alpha.kind", "sigmoid"]),
        ("method.step", {"low": 0.9, "high": 0.1}, ["method.step", "above high"]),
        ("latent", {"prior": "learned", "distribution": "normal"}, ["learned prior is trained by the variational"]),
        ("training.ema", 1.0, ["training.ema", "less than 1"]),
        ("latent.dim.x", 1, ["latent.dim.x"]),
        ("training.optimizer.clip", 0, ["training.optimizer.clip", "greater than 0"]),
        ("training.optimizer.clip", -1.0, ["training.optimizer.clip", "greater than 0"]),
        ("training.optimizer.betas", [0.9, 1], ["training.optimizer.betas.1", "less than 1"]),
        ("training.optimizer.lr", float("inf"), ["training.optimizer.lr", "finite"]),
        ("method.distil_weight", -1, ["method.distil_weight"]),
        ("method.step", {"low": 0, "high": 0.1}, ["method.step.low", "greater than 0"]),
    ],
)
def test_read_names_the_mistake_in_a_di4c_recipe(key: str, value: object, words: list[str]) -> None:
    rejected("di4c/digits", key, value, words)


@pytest.mark.parametrize(
    ("key", "value", "words"),
    [
        ("latent.distribution", "uniform", ["learned prior needs distribution: normal"]),
        ("latent", {"inject": "film"}, ["variational method needs latent.distribution: normal"]),
        ("latent.features", "sinusoid", ["variational method needs", "latent.features: raw"]),
        ("method.encoder_widht", 3, ["method.encoder_widht", "'encoder_width'"]),
        ("method.latents", 4, ["method.latents", "method has no 'latents'"]),
        ("method.kl_weight", {"anneal_from": 0.6, "anneal_until": 0.5}, ["method.kl_weight", "above anneal_until"]),
        ("method.kl_weight.start", 2, ["method.kl_weight.start", "less than or equal to 1"]),
        ("method.iwae_samples", 0, ["method.iwae_samples", "greater than or equal to 1"]),
        ("method.name", "di4c", ["method.name=di4c", "Use --method di4c"]),
        ("method", {"name": "variation"}, ["method.name", "di4c or variational"]),
    ],
)
def test_read_names_the_mistake_in_a_variational_recipe(key: str, value: object, words: list[str]) -> None:
    rejected("digits", key, value, words)


@pytest.mark.parametrize(
    ("key", "value", "words"),
    [
        ("method.steps", [], ["method.steps", "at least 1"]),
        ("method.steps", [0, 2], ["method.steps", "greater than or equal to 1"]),
        ("method.one_share", 1.5, ["method.one_share"]),
        ("latent.prior", "learned", ["does not train a learned prior"]),
        ("rounds", 2, ["moment matching needs a teacher without λ"]),
    ],
)
def test_read_names_the_mistake_in_a_moment_matching_recipe(key: str, value: object, words: list[str]) -> None:
    rejected("words", key, value, words)


def rejected(name: str, key: str, value: object, words: list[str]) -> None:
    with pytest.raises(UserError) as caught:
        recipe_file.read(name, {key: value})
    assert all(word in str(caught.value) for word in words), str(caught.value)
    assert "Value error" not in str(caught.value) and "''" not in str(caught.value)


def test_read_names_an_unknown_key_and_the_nearest(tmp_path: Path) -> None:
    path = tmp_path / "mine.yaml"
    path.write_text("name: x\nsummary: y\nteacher: digits\nmethod: {latent: 4}\n")
    with pytest.raises(UserError, match=r"method\.latent'.*Did you mean 'latents'"):
        recipe_file.read(str(path))


def test_read_rejects_a_broken_file_in_one_sentence(tmp_path: Path) -> None:
    path = tmp_path / "mine.yaml"
    for text, word in (("a: [1", "not a readable recipe: line 1"), ("- 1", "holds no settings")):
        path.write_text(text)
        with pytest.raises(UserError, match=word):
            recipe_file.read(str(path))
    with pytest.raises(UserError, match="no recipe file"):
        recipe_file.find(str(tmp_path / "none.yaml"))
    with pytest.raises(UserError, match="Did you mean 'digits'"):
        recipe_file.find("digit")


def test_parse_assignment_reads_yaml_values() -> None:
    assert recipe_file.parse_assignment("a.b=1e-5") == ("a.b", 1e-5)
    assert recipe_file.parse_assignment("a=[1, 2]") == ("a", [1, 2])
    assert recipe_file.parse_assignment("a=null") == ("a", None)
    for text in ("novalue", "=3", "a=[1"):
        with pytest.raises(UserError):
            recipe_file.parse_assignment(text)


def test_recipe_file_does_not_import_torch() -> None:
    import subprocess
    import sys

    code = "import sys, di4c_cli.recipe_file as r; r.read('digits'); sys.exit('torch' in sys.modules)"
    assert subprocess.run([sys.executable, "-c", code], check=False).returncode == 0


def test_recipe_defaults_are_those_of_the_schema() -> None:
    assert Recipe(name="a", summary="b", teacher="c").training.ema == 0.9999


def test_clip_may_be_none() -> None:
    recipe = recipe_file.read("digits", {"training.optimizer.clip": None})
    assert recipe.training.optimizer.clip is None


OLD_KEYS = [
    ("objective.latents", 8, ["objective is now method"]),
    ("objective.alpha.kind", "zero", ["objective is now method"]),
    ("objective.posterior.width", 64, ["objective.posterior.width is now method.encoder_width"]),
    ("objective.posterior.draws", 4, ["objective.posterior.draws is now method.iwae_samples"]),
    ("objective.posterior.floor", 0.1, ["objective.posterior.floor is now method.kl_weight.start"]),
    ("objective.posterior.rise.low", 0.1, ["objective.posterior.rise is now method.kl_weight.anneal_from"]),
    ("objective.posterior.rise.high", 0.9, ["and method.kl_weight.anneal_until"]),
    ("objective.posterior.rise", {"low": 0.1}, ["objective.posterior.rise is now method.kl_weight"]),
    ("objective.reference", "teacher", ["objective.reference is now data"]),
    ("latent.law", 64, ["latent.law is now latent.prior=learned with latent.prior_width"]),
    ("training.label_drop", 0.1, ["training.label_drop is now training.label_dropout"]),
    ("training.teacher_share", 0.5, ["training.teacher_share is now training.synthetic_share"]),
    ("training.teacher_pool", 10, ["training.teacher_pool is now training.synthetic_pool"]),
]


@pytest.mark.parametrize(("key", "value", "words"), OLD_KEYS, ids=[key for key, *_ in OLD_KEYS])
@pytest.mark.parametrize("where", ["file", "set"])
def test_read_names_the_new_key_for_an_old_one(
    tmp_path: Path, where: str, key: str, value: object, words: list[str]
) -> None:
    with pytest.raises(UserError) as caught:
        if where == "set":
            recipe_file.read("di4c/digits", {key: value})
        else:
            path, tree = tmp_path / "old.yaml", value
            for part in reversed(key.split(".")):
                tree = {part: tree}
            path.write_text(yaml.safe_dump({"name": "x", "summary": "y", "teacher": "digits"} | dict(tree)))  # type: ignore[call-overload]
            recipe_file.read(str(path))
    said = str(caught.value)
    assert all(word in said for word in words), said
    assert said.count("version 0.1") == 1 and "Use the new keys." in said


def test_read_names_all_old_keys_of_a_file_at_once(tmp_path: Path) -> None:
    path = tmp_path / "old.yaml"
    path.write_text(
        "name: x\nsummary: y\nteacher: digits\nlatent: {law: 8}\nobjective: {latents: 4}\n"
        "training: {label_drop: 0.1, batch: 4}\n"
    )
    with pytest.raises(UserError, match=r"^The recipe old\.yaml has .*latent\.law.*objective.*training\.label_drop"):
        recipe_file.read(str(path))


@pytest.mark.parametrize(
    ("old", "new"), [("paper/words", "di4c/words"), ("leader/sdtt-7", "variational/sdtt-7"), ("sdtt-7", "sdtt-7")]
)
def test_current_name_of_an_old_recipe(old: str, new: str) -> None:
    assert recipe_file.current_name(old) == new
    assert recipe_file.find(old) == recipe_file.find(new)


@pytest.mark.parametrize(
    ("name", "method", "expected"),
    [
        ("digits", "di4c", "di4c/digits"),
        ("digits", "variational", "digits"),
        ("di4c/digits", "variational", "digits"),
        ("paper/digits", "variational", "digits"),
        ("sdtt-7", "di4c", "sdtt-7"),
        ("sdtt-7", "variational", "variational/sdtt-7"),
        ("variational/sdtt-7", "di4c", "sdtt-7"),
        ("fashion", "moment_matching", "moment_matching/fashion"),
        ("words", "sdtt", "sdtt/words"),
    ],
)
def test_with_method_finds_the_recipe_of_the_same_teacher(name: str, method: str, expected: str) -> None:
    found = recipe_file.with_method(name, method)
    assert found == expected and recipe_file.read(found).method.name == method


def test_with_method_rejects_what_is_not_there() -> None:
    with pytest.raises(UserError, match=r"Unknown method 'varational'. Did you mean 'variational'"):
        recipe_file.with_method("digits", "varational")
    with pytest.raises(UserError, match=r"no recipe that trains .*'sdtt-6'.*variational/sdtt-7"):
        recipe_file.with_method("sdtt-6", "variational")


def test_methods_are_told_apart_by_their_name() -> None:
    known = {"di4c": Di4CConfig, "variational": VariationalConfig}
    assert known | {"moment_matching": MomentMatchingConfig, "sdtt": SDTTConfig} == METHODS
    for name, config in METHODS.items():
        assert config().name == name  # type: ignore[attr-defined]
        assert implementation(config()).__name__.lower() == name.replace("_", "")
        assert config().live_metrics[0] == "loss"


def test_method_section_without_a_name_is_di4c(tmp_path: Path) -> None:
    path = tmp_path / "mine.yaml"
    head = "name: x\nsummary: y\nteacher: digits\n"
    for text, overrides in (("", {"method.latents": 3}), ("method: {latents: 3}\n", {})):
        path.write_text(head + text)
        assert recipe_file.read(str(path), overrides).method == Di4CConfig(latents=3)
    path.write_text(head + "method: 3\n")
    with pytest.raises(UserError, match=r"'method'"):
        recipe_file.read(str(path))


def test_pretrain_recipe_with_old_keys_names_the_new_ones(tmp_path: Path) -> None:
    text = (recipe_file.folder() / "pretrain" / "words.yaml").read_text(encoding="utf-8")
    (tmp_path / "old.yaml").write_text(text.replace("task: words", "world: words"), encoding="utf-8")
    with pytest.raises(UserError, match="world is now task"):
        recipe_file.read_pretrain(str(tmp_path / "old.yaml"))


def test_recipe_stores_bytes_that_are_no_text_as_escapes() -> None:
    """A path on Linux may hold any bytes; recipe.yaml and config.json are UTF-8."""
    recipe = recipe_file.read("digits", {"data": "a\udcff"})
    assert recipe.data == "a\\udcff"
    recipe.model_dump_json()
