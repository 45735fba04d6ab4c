"""docs/recipes.md is what the schema says today, and says something about every key."""

from __future__ import annotations

from pydantic import BaseModel

from di4c_cli.recipe import Pretrain, Recipe
from tools import make_recipes


def test_recipes_page_is_up_to_date() -> None:
    told = make_recipes.PAGE.read_text(encoding="utf-8")
    assert told == make_recipes.page(), "run `python -m tools.make_recipes`"


def test_recipe_keys_all_have_a_meaning() -> None:
    def walk(model: type[BaseModel], where: str) -> None:
        for name, field in model.model_fields.items():
            assert field.description, f"{where}.{name}"
            inner = make_recipes.section_of(field.annotation)
            if inner is not None:
                walk(inner, f"{where}.{name}")

    walk(Recipe, "recipe")
    walk(Pretrain, "pretrain")


def test_recipes_page_says_values_in_words() -> None:
    text = make_recipes.page()
    assert "| `latents` | integer, ≥ 1 | `16` | L, λ draws per sample (M = N = L) |" in text
    assert "| `distil_weight` | number or `1/step` | `1` |" in text
    assert "| `grid` | integer or none, ≥ 2 | `null` |" in text
    assert "### `training.optimizer`" in text and "| `betas` | 2 numbers | `[0.9, 0.999]` |" in text
