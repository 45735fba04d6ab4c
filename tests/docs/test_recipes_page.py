"""docs/recipes.md is what the schema says today, and says something about every key."""

from __future__ import annotations

import sys
from pathlib import Path

from pydantic import BaseModel

sys.path.insert(0, str(Path(__file__).parents[2] / "docs"))
import make_recipes

from di4c_cli.recipe import Recipe
from di4c_cli.tasks.config import PretrainConfig


def test_the_page_is_up_to_date() -> None:
    told = make_recipes.PAGE.read_text(encoding="utf-8")
    assert told == make_recipes.page(), "run `python docs/make_recipes.py`"


def test_every_key_has_a_meaning() -> None:
    def walk(model: type[BaseModel], where: str) -> None:
        for name, field in model.model_fields.items():
            assert field.description, f"{where}.{name}"
            inner = make_recipes.section_of(field.annotation)
            if inner is not None:
                walk(inner, f"{where}.{name}")

    walk(Recipe, "recipe")
    walk(PretrainConfig, "pretrain")


def test_values_in_words() -> None:
    text = make_recipes.page()
    assert "| `latents` | integer, ≥ 1 | `16` | L, λ draws per sample (M = N = L) |" in text
    assert "| `distil_weight` | number or `1/step` | `1` |" in text
    assert "| `grid` | integer or none, ≥ 2 | `null` |" in text
    assert "### `training.optimizer`" in text and "| `betas` | 2 numbers | `[0.9, 0.999]` |" in text
