"""docs/recipes.md is what the schema says today, and says something about every key."""

from __future__ import annotations

from di4c_cli.recipe import Recipe
from di4c_cli.training.pretrain_config import PretrainConfig
from tools import make_recipes


def test_recipes_page_is_up_to_date() -> None:
    told = make_recipes.PAGE.read_text(encoding="utf-8")
    assert told == make_recipes.page(), "run `python -m tools.make_recipes`"


def test_recipe_keys_all_have_a_meaning() -> None:
    sections = [("recipe", Recipe), ("pretrain", PretrainConfig)]
    sections += [inner for _, model in sections for inner in make_recipes.nested(model)]
    assert {"method: {name: di4c}", "method: {name: variational}", "training.optimizer"} <= dict(sections).keys()
    for where, model in sections:
        for name, field in model.model_fields.items():
            assert field.description, f"{where}.{name}"


def test_recipes_page_says_values_in_words() -> None:
    text = make_recipes.page()
    assert "- `latents` (integer, ≥ 1, ≤ 16384; default `16`): L, λ draws per sample (M = N = L)\n" in text
    assert "- `distil_weight` (number or `1/step`; default `1`): " in text
    assert "- `grid` (integer or none, ≥ 2, ≤ 1000000000; default `null`): " in text
    assert "### `training.optimizer`" in text and "- `betas` (2 numbers; default `[0.9, 0.999]`): " in text
