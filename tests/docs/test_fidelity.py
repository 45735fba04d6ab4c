"""docs/fidelity.md names every table and figure of the paper and every setting of `recipes/authors/`."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
import yaml

from di4c_cli import recipe_file

PAGE = (Path(__file__).parents[2] / "docs" / "fidelity.md").read_text(encoding="utf-8")
LABELS = [
    "tab:tldr",
    "tab:pc",
    "tab:more-tldr",
    "tab:experiment",
    "tab:alpha-ab",
    "tab:lam-ab",
    "tab:latency",
    "tab:cfg-choice",
    "fig:dim-correlation",
    "fig:loss-illustration",
    "fig:maskgit",
    "fig:uncond-ppl",
    "fig:ppl-sbleu",
    "fig:tldr-samples",
    "fig:maskgit-samples",
    "fig:language-app-c",
    "fig:language-app-d",
    "fig:mauve-c",
    "fig:mauve-d",
]
"""Labels of the paper's LaTeX."""
SDTT = {"training.ema": 0.0, "training.optimizer.warmup": 2500, "method.time.corrupt_later": True}
AUTHORS: dict[str, dict[str, Any]] = {
    "sdtt-6": SDTT,
    "sdtt-7": SDTT,
    "maskgit-imagenet256": {
        "method.teacher_step": "confidence-authors",
        "method.loss_domain": "all",
        "training.precision": "fp16",
        "training.crop": "random",
    },
    "tauldr-cifar10": {"student_weights": "live", "training.dropout_at_u": True},
}
"""What the recipes of the authors' code change."""


def flat(tree: dict[str, Any], prefix: str = "") -> dict[str, Any]:
    out: dict[str, Any] = {}
    for key, value in tree.items():
        out |= flat(value, f"{prefix}{key}.") if isinstance(value, dict) else {prefix + key: value}
    return out


@pytest.mark.parametrize("label", LABELS)
def test_fidelity_page_has_every_table_and_figure(label: str) -> None:
    assert any(
        label in row.split("|")[1].replace(",", " ").split() for row in PAGE.splitlines() if row.startswith("| ")
    )


@pytest.mark.parametrize("name", AUTHORS)
def test_fidelity_page_has_every_key_of_the_authors_recipes(name: str) -> None:
    paper, authors = (flat(recipe_file.read(ref).model_dump()) for ref in (name, f"authors/{name}"))
    changed = {key: value for key, value in authors.items() if paper[key] != value and key not in ("name", "summary")}
    assert changed == AUTHORS[name]
    for key, value in changed.items():
        shown = yaml.safe_dump(value).split("\n")[0]
        assert f"`{key}: {shown.removesuffix('.0')}`" in PAGE


@pytest.mark.parametrize("name", ["sdtt-6-d", "sdtt-7-d"])
def test_recipes_with_the_data_term_have_one_round(name: str) -> None:
    """The paper's second round (di4c²) is without the data term."""
    assert "--rounds" not in recipe_file.find(name).read_text(encoding="utf-8")
    assert recipe_file.read(name).rounds == 1


def test_authors_folder_is_complete() -> None:
    assert {ref for ref in recipe_file.names() if ref.startswith("authors/")} == {f"authors/{name}" for name in AUTHORS}
